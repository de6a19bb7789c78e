package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"aliquot.dev/aliquot/e2e/bench"
)

// sample is one review that was asked for.
type sample struct {
	kind string
	took time.Duration // since it was to be sent
	err  error
}

// series is what a server did under load.
type series struct {
	samples []sample
	memory  []float64 // MiB, in the last round: by then what it took to get here is collected
	lasted  time.Duration
	worked  time.Duration // on its CPU
	waited  time.Duration // for its CPU
}

// add loads a server once more.
func (s *series) add(ctx context.Context, p *process, reviews []review) error {
	waited := p.Waited()
	before, err := p.Worked()
	if err != nil {
		return err
	}
	s.memory = nil
	done := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-time.After(200 * time.Millisecond):
				s.memory = append(s.memory, p.Resident())
			}
		}
	})
	start := time.Now()
	s.samples = append(s.samples, load(ctx, p.ask, reviews, time.Second/reviewsPerSec)...)
	s.lasted += time.Since(start)
	close(done)
	watching.Wait()
	after, err := p.Worked()
	s.worked += after - before
	s.waited += p.Waited() - waited
	return errors.Join(err, ctx.Err())
}

// load sends each review at its time, however late others are, as clients do that know nothing of each other.
func load(ctx context.Context, ask func(context.Context, review) ([]byte, error), reviews []review, every time.Duration) []sample {
	samples := make([]sample, len(reviews))
	var answers sync.WaitGroup
	start := time.Now()
	for i, r := range reviews {
		due := start.Add(time.Duration(i) * every)
		select {
		case <-ctx.Done():
			answers.Wait()
			return nil
		case <-time.After(time.Until(due)):
		}
		answers.Go(func() {
			body, err := ask(ctx, r)
			samples[i] = sample{kind: r.kind, took: time.Since(due)}
			if err == nil {
				err = r.check(body)
			}
			samples[i].err = err
		})
	}
	answers.Wait()
	return samples
}

// ask is what the API server does with a webhook.
func (p *process) ask(ctx context.Context, r review) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url+r.path, bytes.NewReader(r.body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// answer reads what a webhook says.
func (r review) answer(body []byte) (*admissionv1.AdmissionResponse, error) {
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &answer); err != nil {
		return nil, fmt.Errorf("read the answer %q: %w", body, err)
	}
	if answer.Response == nil || answer.Response.UID != r.uid {
		return nil, fmt.Errorf("the answer is for another review: %s", body)
	}
	return answer.Response, nil
}

// check finds answers that were not worth waiting for.
func (r review) check(body []byte) error {
	response, err := r.answer(body)
	if err != nil {
		return err
	}
	if unchecked := slices.ContainsFunc(response.Warnings, func(w string) bool { return strings.HasPrefix(w, "not checked") }); unchecked || response.Allowed != r.allowed {
		return fmt.Errorf("%s of %s: answered %s", r.path, r.name, body)
	}
	return nil
}

// took is how long reviews of some kinds took, in order.
func (s series) took(kinds ...string) []time.Duration {
	var took []time.Duration
	for _, one := range s.samples {
		if slices.Contains(kinds, one.kind) {
			took = append(took, one.took)
		}
	}
	slices.Sort(took)
	return took
}

// resident is in MiB.
func (s series) resident() float64 {
	return slices.Sorted(slices.Values(s.memory))[len(s.memory)/2]
}

func (s series) print(of string) {
	fmt.Printf("%s: %.2f ms on its CPU a review, %.0f%% of the time; %.0f%% of the time it waited for its CPU\n", of,
		bench.Milliseconds(s.worked)/float64(len(s.samples)), 100*s.worked.Seconds()/s.lasted.Seconds(), 100*s.waited.Seconds()/s.lasted.Seconds())
	for _, kind := range append(slices.Clone(checks), reserve) {
		fmt.Printf("  %-15s %s\n", kind, bench.Spread(s.took(kind)))
	}
}

// mistakes says whether any answer was wrong: then the figures mean nothing.
func (s series) mistakes() error {
	var first error
	count := 0
	for _, one := range s.samples {
		if one.err != nil {
			count++
			first = cmp.Or(first, one.err)
		}
	}
	if count == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d answers were wrong, the first: %w", count, len(s.samples), first)
}
