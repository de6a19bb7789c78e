package preflight

import (
	"encoding/json"
	"fmt"
	"io"
)

// Report is what all checks found.
type Report struct {
	Node     string    `json:"node"`
	Findings []Finding `json:"findings"`
}

func (r *Report) add(findings ...Finding) {
	r.Findings = append(r.Findings, findings...)
}

// Count is how many findings are of a level.
func (r Report) Count(level Level) (count int) {
	for _, f := range r.Findings {
		if f.Level == level {
			count++
		}
	}
	return count
}

var words = map[Level]string{OK: "ok", Warn: "warn", Fail: "FAIL"}

// Text writes a line for each finding, and one below it for the remedy.
func (r Report) Text(w io.Writer) error {
	width := 0
	for _, f := range r.Findings {
		width = max(width, len(f.Check))
	}
	for _, f := range r.Findings {
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  %s\n", words[f.Level], width, f.Check, f.Found); err != nil {
			return fmt.Errorf("write findings: %w", err)
		}
		if f.Level == OK {
			continue
		}
		if _, err := fmt.Fprintf(w, "%-4s  %-*s  -> %s\n", "", width, "", f.Remedy); err != nil {
			return fmt.Errorf("write findings: %w", err)
		}
	}
	return nil
}

// JSON writes the report for programs.
func (r Report) JSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(r); err != nil {
		return fmt.Errorf("write findings: %w", err)
	}
	return nil
}
