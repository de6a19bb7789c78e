package driver

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"aliquot.dev/aliquot/internal/gpu"
	"aliquot.dev/aliquot/internal/quota"
)

// recordVersion is written into each record. Fields may be added under it that older readers may pass over; anything else
// takes another version, which is read for a release before it is written.
const recordVersion = 1

// record is what the node remembers of a claim that it began to prepare.
type record struct {
	Version     int          `json:"version"`
	UID         types.UID    `json:"uid"`
	Namespace   string       `json:"namespace"`
	Name        string       `json:"name"`
	Allocations []allocation `json:"allocations"`
}

// allocation is one result of the claim's allocation.
type allocation struct {
	Request     string       `json:"request"`
	Pool        string       `json:"pool"`
	Device      string       `json:"device"`
	GPU         string       `json:"gpu"` // UUID: the name may mean another GPU after a reboot
	Partition   *partition   `json:"partition,omitempty"`
	ShareID     types.UID    `json:"shareID,omitempty"`
	AdminAccess bool         `json:"adminAccess,omitempty"`
	Limits      quota.Limits `json:"limits"`
}

// partition is where on the GPU an allocation lies.
type partition struct {
	Profile     string        `json:"profile"`
	Placement   gpu.Placement `json:"placement"`
	MemoryBytes uint64        `json:"memoryBytes"` // that can be given out
}

// records keeps one small file a claim, so that a torn one costs that claim only.
type records struct {
	dir string
	// changing is called before anything changes.
	changing func() error
}

const (
	recordSuffix  = ".json"
	corruptSuffix = ".corrupt"
)

// errCorrupt is wrapped by read for a file that holds no record.
var errCorrupt = errors.New("record cannot be read")

// errNewer is wrapped by read for a record of a later version than this one, as after a downgrade. It is nobody's but that version's.
var errNewer = errors.New("was prepared by a newer plugin")

// write stores a record whole or not at all, whenever the plugin dies. It does not wait for the disk, which takes longer than all else of a
// prepare: a loss of power may take or tear the last records, but takes the containers too, and none starts again before the kubelet has
// had its claim prepared anew.
func (rs records) write(r record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record of claim %s: %w", r.UID, err)
	}
	if err = rs.changing(); err == nil {
		err = os.MkdirAll(rs.dir, 0o700)
	}
	if err != nil {
		return fmt.Errorf("write record of claim %s: %w", r.UID, err)
	}
	if err := replace(rs.path(string(r.UID)), data); err != nil {
		return fmt.Errorf("write record of claim %s: %w", r.UID, err)
	}
	return nil
}

// replace is like renameio.WriteFile, which waits for the disk too.
func replace(path string, data []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path))
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err = errors.Join(err, file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name()) // or the next start sweeps it
	}
	return err
}

// read returns fs.ErrNotExist for a claim without a record. Of a record of a later version it returns what it understands.
func (rs records) read(uid string) (record, error) {
	data, err := os.ReadFile(rs.path(uid))
	if err != nil {
		return record{}, fmt.Errorf("read record of claim %s: %w", uid, err)
	}
	r, err := decodeRecord(data)
	if errors.Is(err, errNewer) && string(r.UID) == uid {
		return r, fmt.Errorf("claim %s %w", uid, err)
	}
	if err != nil {
		return record{}, fmt.Errorf("%w: claim %s: %w", errCorrupt, uid, err)
	}
	if string(r.UID) != uid {
		return record{}, fmt.Errorf("%w: claim %s: the file is of claim %q", errCorrupt, uid, r.UID)
	}
	return r, nil
}

func decodeRecord(data []byte) (record, error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	var r record
	var other *json.UnmarshalTypeError // what a later version may have made of a field
	err := decoder.Decode(&r)
	if err != nil && (r.Version <= recordVersion || !errors.As(err, &other)) {
		return record{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return record{}, errors.New("more than one value")
	}
	switch {
	case r.Version > recordVersion:
		return r, fmt.Errorf("%w: its record is of version %d, this plugin knows %d: upgrade to that plugin again", errNewer, r.Version, recordVersion)
	case r.Version < recordVersion:
		return record{}, fmt.Errorf("version %d is not %d", r.Version, recordVersion)
	}
	return r, nil
}

// remove forgets a claim. One without a record is no error.
func (rs records) remove(uid string) error {
	if err := rs.changing(); err != nil {
		return fmt.Errorf("remove record of claim %s: %w", uid, err)
	}
	for _, path := range []string{rs.path(uid), rs.path(uid) + corruptSuffix} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record of claim %s: %w", uid, err)
		}
	}
	return nil
}

// setAside keeps a corrupt record for people to look at, out of the way.
func (rs records) setAside(uid string) error {
	err := rs.changing()
	if err == nil {
		err = os.Rename(rs.path(uid), rs.path(uid)+corruptSuffix)
	}
	if err != nil {
		return fmt.Errorf("set aside record of claim %s: %w", uid, err)
	}
	return nil
}

// sweep removes what a write left half done.
func (rs records) sweep() error {
	entries, err := rs.list()
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ".") || !entry.Type().IsRegular() {
			continue
		}
		if err := os.Remove(filepath.Join(rs.dir, entry.Name())); err != nil {
			return fmt.Errorf("sweep records: %w", err)
		}
	}
	return nil
}

// uids lists the claims that have a record, and those whose record was set aside.
func (rs records) uids() (good, corrupt []string, err error) {
	entries, err := rs.list()
	if err != nil {
		return nil, nil, err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".") {
			continue
		}
		if uid, ok := strings.CutSuffix(entry.Name(), recordSuffix); ok {
			good = append(good, uid)
		}
		if uid, ok := strings.CutSuffix(entry.Name(), recordSuffix+corruptSuffix); ok {
			corrupt = append(corrupt, uid)
		}
	}
	return good, corrupt, nil
}

// list is empty where there is no directory yet.
func (rs records) list() ([]fs.DirEntry, error) {
	entries, err := os.ReadDir(rs.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list records: %w", err)
	}
	return entries, nil
}

func (rs records) path(uid string) string {
	return filepath.Join(rs.dir, filepath.Base(uid)+recordSuffix)
}
