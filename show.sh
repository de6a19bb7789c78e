cd /tmp/work/admission/internal/admission/testdata
for n in "$@"; do grep -H "^#" */$n.yaml; done
