package preload_test

import (
	"testing"
)

func TestAgentPageIsReadWhole(t *testing.T) {
	for _, how := range []string{"whole", "stuck"} {
		if out := output(t, compile(t, "agent"), how); out != "" {
			t.Errorf("agent %s: %s", how, out)
		}
	}
}
