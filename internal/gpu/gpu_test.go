package gpu

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAllocatableIsWhatTheDriverLeavesInWholeSteps(t *testing.T) {
	tests := []struct{ total, reserved, want uint64 }{
		{total: 100, reserved: 0, want: 100},
		{total: 109, reserved: 0, want: 100},
		{total: 109, reserved: 5, want: 100},
		{total: 109, reserved: 10, want: 90},
		{total: 9, reserved: 0, want: 0},
		{total: 100, reserved: 100, want: 0},
		{total: 100, reserved: 200, want: 0},
	}
	for _, tc := range tests {
		if got := (Device{MemoryTotal: tc.total, MemoryReserved: tc.reserved}).Allocatable(10); got != tc.want {
			t.Errorf("%d bytes of which %d are reserved: allocatable %d, want %d", tc.total, tc.reserved, got, tc.want)
		}
	}
}

func TestFromFileRefusesWhatItDoesNotKnow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "gpus.yaml")
	for content, wantErr := range map[string]string{
		"- {index: 0, uuid: GPU-0}": "",
		"- {index: 0, uid: GPU-0}":  `unknown field "uid"`,
		"- {index: zero}":           "cannot unmarshal",
		"{":                         "read GPUs from " + path,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := FromFile(path)
		if wantErr == "" && err != nil || wantErr != "" && (err == nil || !strings.Contains(err.Error(), wantErr)) {
			t.Errorf("%s: got error %v, want %q", content, err, wantErr)
		}
	}
	if _, err := FromFile(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}
