//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"testing"

	"aliquot.dev/aliquot/e2e/scenario"
)

func TestPodWaitsWhileTheDiskIsFull(t *testing.T) {
	s := begin(t, badDisk)
	// The records' directory on a disk of its own, seen by a plugin that starts after it is mounted.
	s.onNode("mkdir -p %[1]s && mount -t tmpfs -o size=64k none %[1]s", scenario.RecordsDir)
	t.Cleanup(func() {
		_, _ = s.OnNode(context.Background(), s.node, "umount", scenario.RecordsDir)
	})
	plugin := s.replacePlugin()
	s.pluginReady()
	s.onNode("dd if=/dev/zero of=%s/fill bs=4k 2>/dev/null || true", scenario.RecordsDir)
	s.start("waiting", s.share("1Gi"), cuda("main"))
	s.told("waiting", "write record", "no space left on device")
	s.notStarted("waiting")

	s.onNode("rm %s/fill", scenario.RecordsDir)
	s.held("waiting", "1Gi")
	s.samePlugin(plugin)
	s.remove("waiting")
	if state, err := s.State(s.node); err != nil || len(state.Records)+len(state.Other) > 0 {
		t.Errorf("left on the disk that was full: %+v (%v)", state, err)
	}
	s.onNode("umount %s", scenario.RecordsDir)
	s.replacePlugin()
	s.pluginReady()
}

func TestCorruptRecordIsRebuilt(t *testing.T) {
	s := begin(t, badDisk)
	s.start("unharmed", s.share("1Gi"), cuda("main"))
	s.held("unharmed", "1Gi")
	before, err := s.State(s.node)
	s.must(err)
	if len(before.Records) != 1 {
		t.Fatalf("want one record: %+v", before)
	}
	uid := before.Records[0].UID
	s.onNode("echo '{\"version\": 1, \"uid\":' > %s/%s.json", scenario.RecordsDir, uid)
	s.killPlugin()
	s.nodeTold("RecordCorrupt", uid)
	s.eventually("the record is rebuilt", func(ctx context.Context) (bool, error) {
		state, err := s.State(s.node)
		return len(state.Records) == 1 && fmt.Sprint(state.Records[0]) == fmt.Sprint(before.Records[0]), err
	})
	s.stillHeld("unharmed", "1Gi")
	// What was rebuilt is booked: nobody else gets the rest twice.
	s.start("beside", s.again("gpu"), cuda("main"))
	s.held("beside", "1Gi")
}
