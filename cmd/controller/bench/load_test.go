package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A server that hangs for the first review must not hide that others would have waited too: they are sent all the same,
// and timed from when they were to be sent.
func TestLateAnswersDelayNobody(t *testing.T) {
	all := make(chan struct{})
	asked := make(chan struct{}, 20)
	go func() {
		for range 20 {
			<-asked
		}
		close(all)
	}()
	reviews := make([]review, 20)
	samples := load(t.Context(), func(context.Context, review) ([]byte, error) {
		asked <- struct{}{}
		<-all // nobody is answered before everybody has asked
		return nil, nil
	}, reviews, time.Millisecond)
	if first, last := samples[0].took, samples[19].took; first < 19*time.Millisecond || first < last {
		t.Errorf("the first took %s, the last %s", first, last)
	}
}

func TestAnswersAreChecked(t *testing.T) {
	const answer = `{"response": {"uid": "%s", "allowed": %t, "warnings": ["%s"]}}`
	r := review{name: "object-1", uid: "1", allowed: true}
	for body, ok := range map[string]bool{
		fmt.Sprintf(answer, "1", true, "no GPU in the cluster matches now"): true,
		fmt.Sprintf(answer, "1", false, ""):                                 false,
		fmt.Sprintf(answer, "2", true, ""):                                  false,
		fmt.Sprintf(answer, "1", true, "not checked by Aliquot"):            false,
		"": false,
	} {
		if err := r.check([]byte(body)); (err == nil) != ok {
			t.Errorf("%s: %v", body, err)
		}
	}
	s := series{samples: []sample{{err: r.check([]byte("first"))}, {}, {err: r.check([]byte("second"))}}}
	if err := s.mistakes(); err == nil || !strings.Contains(err.Error(), "2 of 3 answers were wrong, the first") || !strings.Contains(err.Error(), "first") {
		t.Error(err)
	}
}
