"""The version of rlrun, by itself, so that the command need not import what the package offers to Python."""

VERSION = "0.1.0"
