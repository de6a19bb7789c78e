package cdi

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// Store writes, lists and removes the specs and share directories of claims. Every call may be repeated.
type Store struct {
	layout Layout
	cache  *cdi.Cache
}

// NewStore returns a store that keeps things where layout says. It touches no file.
func NewStore(layout Layout) (*Store, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(layout.SpecDir), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("open CDI directory %s: %w", layout.SpecDir, err)
	}
	return &Store{layout: layout, cache: cache}, nil
}

// WriteSpec writes a claim's spec and reads it back: a spec that a runtime would not take must not be reported as there.
func (s *Store) WriteSpec(claim Claim) error {
	spec, err := Render(claim, s.layout)
	if err != nil {
		return err
	}
	name := specName(claim.UID)
	if old, err := cdi.ReadSpec(filepath.Join(s.layout.SpecDir, name), 0); err == nil && reflect.DeepEqual(old.Spec, spec) {
		return nil // each change has the container runtime read all specs of the node again
	}
	if err := s.cache.WriteSpec(spec, name); err != nil {
		return fmt.Errorf("write CDI spec of claim %s: %w", claim.UID, err)
	}
	written, err := cdi.ReadSpec(filepath.Join(s.layout.SpecDir, name), 0)
	if err != nil {
		return fmt.Errorf("read back CDI spec of claim %s: %w", claim.UID, err)
	}
	for _, d := range claim.Devices {
		if written.GetDevice(DeviceName(claim.UID, d)) == nil {
			return fmt.Errorf("read back CDI spec of claim %s: device %s is missing", claim.UID, DeviceName(claim.UID, d))
		}
	}
	return nil
}

// RemoveSpec removes a claim's spec. A claim without one is no error.
func (s *Store) RemoveSpec(claimUID string) error {
	if err := s.cache.RemoveSpec(specName(claimUID)); err != nil {
		return fmt.Errorf("remove CDI spec of claim %s: %w", claimUID, err)
	}
	return nil
}

// WriteShares makes the share directories of a claim what they have to be: it adds what is missing, corrects quotas, and
// removes what an earlier allocation of the claim or a killed plugin left there.
func (s *Store) WriteShares(claim Claim) error {
	if err := claim.Validate(); err != nil {
		return err
	}
	var shares []string
	for _, d := range claim.Devices {
		if d.Quota == nil {
			continue
		}
		if err := writeShare(s.layout.ShareDir(claim.UID, d), *d.Quota); err != nil {
			return fmt.Errorf("write share %s of claim %s: %w", d.ID, claim.UID, err)
		}
		shares = append(shares, shareName(d))
	}
	if len(shares) == 0 {
		return s.RemoveShares(claim.UID)
	}
	return removeOthers(s.layout.claimDir(claim.UID), shares...)
}

// RemoveShares removes a claim's share directories. A claim without any is no error.
func (s *Store) RemoveShares(claimUID string) error {
	if !safeName.MatchString(claimUID) {
		return fmt.Errorf("claim UID %q is not a name", claimUID)
	}
	if err := os.RemoveAll(s.layout.claimDir(claimUID)); err != nil {
		return fmt.Errorf("remove shares of claim %s: %w", claimUID, err)
	}
	return nil
}

// User is a process that uses a share of a claim, by its lock on the share's accounting region: nothing that a container
// writes there hides it. pid is 0 where it cannot be told.
func (s *Store) User(claimUID string) (pid int, used bool, err error) {
	if !safeName.MatchString(claimUID) {
		return 0, false, fmt.Errorf("claim UID %q is not a name", claimUID)
	}
	shares, err := names(s.layout.claimDir(claimUID))
	if err != nil {
		return 0, false, err
	}
	for _, share := range shares {
		pid, used, err := userOf(filepath.Join(s.layout.claimDir(claimUID), share))
		if used || err != nil {
			return pid, used, err
		}
	}
	return 0, false, nil
}

// Quotas are what the quota files of a claim say, which containers cannot write.
func (s *Store) Quotas(claimUID string) ([]Quota, error) {
	if !safeName.MatchString(claimUID) {
		return nil, fmt.Errorf("claim UID %q is not a name", claimUID)
	}
	shares, err := names(s.layout.claimDir(claimUID))
	if err != nil {
		return nil, err
	}
	var quotas []Quota
	for _, share := range shares {
		text, err := os.ReadFile(filepath.Join(s.layout.claimDir(claimUID), share, quotaFile))
		if errors.Is(err, fs.ErrNotExist) {
			continue // it was about to be made, or removed
		}
		if err != nil {
			return nil, err
		}
		var q Quota
		var version int
		if _, err := fmt.Sscanf(string(text), quotaFormat, &version, &q.GPU, &q.MemoryBytes, &q.CorePercent, &q.CorePolicy, &q.Priority); err != nil {
			return nil, fmt.Errorf("quota of share %s of claim %s: %w", share, claimUID, err)
		}
		if version != quotaVersion {
			return nil, fmt.Errorf("quota of share %s of claim %s: version %d is not %d", share, claimUID, version, quotaVersion)
		}
		quotas = append(quotas, q)
	}
	return quotas, nil
}

// Claims lists the UIDs of all claims that have a spec or a share directory, sorted.
func (s *Store) Claims() ([]string, error) {
	specNames, err := names(s.layout.SpecDir)
	if err != nil {
		return nil, err
	}
	uids, err := names(s.layout.SharesDir)
	if err != nil {
		return nil, err
	}
	for _, name := range specNames {
		uid, ok := strings.CutPrefix(strings.TrimSuffix(name, specExtension), specPrefix)
		if ok && strings.HasSuffix(name, specExtension) {
			uids = append(uids, uid)
		}
	}
	uids = slices.DeleteFunc(uids, func(uid string) bool { return !safeName.MatchString(uid) })
	slices.Sort(uids)
	return slices.Compact(uids), nil
}

const (
	specPrefix    = vendor + "-" + class + "_" // as cdi.GenerateTransientSpecName makes them
	specExtension = ".json"
)

func specName(claimUID string) string {
	return cdi.GenerateTransientSpecName(vendor, class, claimUID) + specExtension
}

// removeOthers removes all from a directory that is not in keep.
func removeOthers(dir string, keep ...string) error {
	present, err := names(dir)
	if err != nil {
		return err
	}
	for _, name := range present {
		if slices.Contains(keep, name) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("remove what is left in %s: %w", dir, err)
		}
	}
	return nil
}

// names lists a directory; one that does not exist is empty.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	names := make([]string, 0, len(entries))
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}
