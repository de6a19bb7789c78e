//go:build e2e

package specs_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"aliquot.dev/aliquot/e2e/scenario"
	"aliquot.dev/aliquot/e2e/simdriver"
)

// budget is what the pods of one claim, or of one pod's claims, may have together.
type budget struct {
	node  string
	of    string // pods of one budget have the same
	bytes uint64 // 0: what the hardware says, of whole GPUs and partitions
}

// grant says what a pod may have, before it is made.
func (c *chaos) grant(pod string, b budget) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.budgets[pod] = b
}

func (c *chaos) budgetOf(pod string) (budget, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, ok := c.budgets[pod]
	return b, ok
}

// look reads the ledgers of the hardware, and what the plugins have booked, over and over.
func (c *chaos) look(ctx context.Context, group *sync.WaitGroup) error {
	if err := c.readLedgers(); err != nil {
		return err
	}
	group.Go(func() {
		for ; ctx.Err() == nil; <-time.After(200 * time.Millisecond) { // leaves the machine to the rest
			if err := c.readLedgers(); err != nil {
				c.fail(err)
			}
		}
	})
	for _, s := range c.on {
		allocatable := s.allocatable(ctx)
		group.Go(func() {
			for ; ctx.Err() == nil; <-time.After(time.Second) {
				booked, err := s.bookedAtOnce()
				if err != nil {
					continue // the node is down
				}
				if err := notOvercommitted(booked, allocatable); err != nil {
					c.fail(err)
				}
			}
		})
	}
	return nil
}

// bookedAtOnce has the records that were there at one moment: one is read after the other, so those that were there before
// and after.
func (s *spec) bookedAtOnce() (scenario.State, error) {
	before, err := s.State(s.node)
	if err != nil {
		return before, err
	}
	after, err := s.State(s.node)
	before.Records = slices.DeleteFunc(before.Records, func(r scenario.Record) bool {
		return !slices.ContainsFunc(after.Records, func(now scenario.Record) bool { return now.UID == r.UID })
	})
	return before, err
}

func (c *chaos) readLedgers() error {
	seen := map[string]simdriver.Ledger{}
	for node := range c.on {
		driver, err := c.Driver(node)
		if err != nil {
			return err
		}
		ledger, err := driver.Ledger()
		if err != nil {
			return err
		}
		if err := errors.Join(withinCapacity(ledger), c.withinBudgets(ledger)); err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
		seen[node] = ledger
	}
	c.seen.Store(&seen)
	return nil
}

// withinBudgets checks that no container ever had more than its pod may have, and that the pods of one budget have not
// more than that now.
func (c *chaos) withinBudgets(ledger simdriver.Ledger) error {
	together := map[string]uint64{}
	for _, container := range ledger.Containers {
		b, ok := c.budgetOf(container.Hostname)
		if !ok || b.bytes == 0 {
			continue
		}
		var peak uint64
		for _, usage := range container.GPUs {
			peak += usage.Peak
			together[b.of] += usage.Used
		}
		if peak > b.bytes {
			return fmt.Errorf("a container of pod %s had %d bytes, and may have %d", container.Hostname, peak, b.bytes)
		}
		if together[b.of] > b.bytes {
			return fmt.Errorf("the pods of %s have %d bytes, and may have %d", b.of, together[b.of], b.bytes)
		}
	}
	return nil
}

// holds says whether pods have all that they may have.
func (c *chaos) holds(pods []string) (bool, error) {
	var used uint64
	b, _ := c.budgetOf(pods[0])
	for _, pod := range pods {
		for _, usage := range (*c.seen.Load())[b.node].Container(pod) {
			used += usage.Used
		}
	}
	if used == 0 || b.bytes != 0 && used != b.bytes {
		return false, fmt.Errorf("the hardware gave it %d bytes, and it may have %d", used, b.bytes)
	}
	return true, nil
}
