# Sourced by the other scripts: makes .venv on first use and brings it up to date when pyproject.toml or the pins change.
# A script that sets needs=dev before gets what the tests and the checks of the code need too.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${RLRUN_VENV:-$root/.venv}
stamp=$venv/.rlrun-installed
[ "${needs:-}" = dev ] || needs=
want=$(cat "$root/pyproject.toml" "$root/scripts/constraints.txt" "$root/scripts/setup.sh" | sha256sum | cut -d' ' -f1)
installed() { [[ "$(cat "$stamp" 2>/dev/null)" == "$want"*"$needs" ]]; }
if ! installed; then
  python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rlrun needs Python 3.11 or newer; $python is older (set PYTHON=...)." >&2; exit 2; }
  echo "First use: installing rlrun and what it needs into $venv (one to three minutes) ..." >&2
  (
    flock 9                                        # two scripts started together must not both install
    if ! installed; then
      pip=("$venv/bin/python" -m pip install --disable-pip-version-check -q -c "$root/scripts/constraints.txt")
      # Compiling every module of every package takes longer than the rest. Python compiles those that it imports, once.
      [ "${PYTHONDONTWRITEBYTECODE:-}" ] || pip+=(--no-compile)
      if grep -qs 'dev$' "$stamp"; then needs=dev; fi
      case "$(cat "$stamp" 2>/dev/null)" in "" | partial*) made=yes ;; *) made= ;; esac
      # bash ignores "set -e" here, because of the || below
      { "$venv/bin/python" -m pip --version > /dev/null 2>&1 || "$python" -m venv --clear "$venv"; } &&
        echo "partial $needs" > "$stamp" && "${pip[@]}" torch && "${pip[@]}" -e "$root[atari,video,multi-agent${needs:+,$needs}]" || exit 1
      echo "$want $needs" > "$stamp"
      if [ "$made" ]; then
        echo "Installed. To type rlrun without scripts/: source ${venv/#$PWD\//}/bin/activate" >&2
        echo "Or put it on the path for good:            ln -s $venv/bin/rlrun ~/.local/bin/rlrun" >&2
        echo "More packages (MuJoCo, Box2D, ...):        rlrun setup" >&2
      fi
    fi
  ) 9> "$root/.venv.lock" || { echo "The installation failed; its messages are above." >&2; exit 1; }
fi
