# Sourced by the other scripts: makes .venv on first use and brings it up to date when pyproject.toml or the pins change.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${RLRUN_VENV:-$root/.venv}
stamp=$venv/.rlrun-installed
want=$(cat "$root/pyproject.toml" "$root/scripts/constraints.txt" "$root/scripts/setup.sh" | sha256sum | cut -d' ' -f1)
if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rlrun needs Python 3.11 or newer; $python is older (set PYTHON=...)." >&2; exit 2; }
  echo "First use: installing rlrun and what it needs into $venv (a few minutes) ..." >&2
  (
    flock 9                                        # two scripts started together must not both install
    if [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
      [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
      pins=(-c "$root/scripts/constraints.txt")
      "$venv/bin/python" -m pip install --disable-pip-version-check -q "${pins[@]}" torch
      "$venv/bin/python" -m pip install --disable-pip-version-check -q "${pins[@]}" -e "$root[atari,video,multi-agent,dev]"
      if [ -e "$stamp" ]; then made=; else made=yes; fi
      echo "$want" > "$stamp"
      if [ "$made" ]; then
        echo "Installed. To type rlrun without scripts/: source ${venv/#$PWD\//}/bin/activate" >&2
        echo "Or put it on the path for good:            ln -s $venv/bin/rlrun ~/.local/bin/rlrun" >&2
        echo "More packages (MuJoCo, Box2D, ...):        rlrun setup" >&2
      fi
    fi
  ) 9> "$root/.venv.lock" || { echo "The installation failed; its messages are above." >&2; exit 1; }
fi
