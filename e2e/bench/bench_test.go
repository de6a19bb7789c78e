package bench

import (
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	var took []time.Duration
	for i := range 200 {
		took = append(took, time.Duration(i+1))
	}
	for part, want := range map[float64]time.Duration{0.5: 100, 0.9: 180, 0.99: 198, 1: 200} {
		if got := Quantile(took, part); got != want {
			t.Errorf("%v of 200: got %d, want %d", part, got, want)
		}
	}
	if got := Quantile(nil, 0.99); got != 0 {
		t.Errorf("of nothing: %d", got)
	}
}
