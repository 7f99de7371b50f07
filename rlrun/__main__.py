"""python -m rlrun"""

from rlrun.cli import main

if __name__ == "__main__":
    main()
