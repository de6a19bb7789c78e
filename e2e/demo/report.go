package main

import (
	"fmt"
	"io"
	"path/filepath"
	"text/tabwriter"

	"aliquot.dev/aliquot/e2e/workload"
)

func isDevice(e workload.Event) bool { return e.Event == "device" }

func parent(path string) string { return filepath.Dir(path) }

const next = `
What to try next:
  make demo KEEP=1          the same, and the cluster stays up until you interrupt it
  make cluster-up           a cluster of your own with Aliquot on it, make cluster-down ends it
  deployments/examples      claims to copy
  README.md                 the same on a cluster with real GPUs: one helm command, one claim
`

// report prints the table and returns how many checks held. Its last line is the result.
func report(out io.Writer, rows []row) (held int) {
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tGPU\tQUOTA\tSHOWN\tGOT\tHARDWARE PEAK\tHELD\t")
	for _, r := range rows {
		verdict := "NO"
		if r.held {
			verdict = "yes"
			held++
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", r.what, r.gpu, gib(r.quota), gib(r.shown), gib(r.got), gib(r.hardware), verdict, r.why)
	}
	_ = t.Flush()
	fmt.Fprint(out, next, "\n")
	fmt.Fprintf(out, "demo: %d of %d held\n", held, len(rows))
	return held
}

// gib prints bytes in GiB, exactly if they are whole MiB, and nothing for none.
func gib(bytes uint64) string {
	if bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f GiB", float64(bytes)/(1<<30))
}
