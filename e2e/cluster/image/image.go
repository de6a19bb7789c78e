// Package image makes container images from files of this machine, without a
// registry and without a container engine. An image has one layer; what a pod
// runs is the pod's to say.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// Image describes an image: a name, and the tree that its containers see.
type Image struct {
	Name string // with registry and tag, as in `aliquot.test/base:latest`
	Root *Tree
	Env  []string
	// Entrypoint runs in containers that give no command. Most need none.
	Entrypoint []string
}

// created is the date of all images and files: the same files make the same
// image, so that a node which has it does nothing.
var created = time.Unix(0, 0).UTC()

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar"
)

// Write makes the image and writes it to path as an OCI archive, the form that
// `ctr images import` reads. The layer is not compressed: it travels nowhere.
func (i Image) Write(path string) error {
	layer, err := os.CreateTemp(filepath.Dir(path), ".layer-*")
	if err != nil {
		return err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	if err := i.writeWith(layer, path); err != nil {
		return fmt.Errorf("make image %s: %w", i.Name, err)
	}
	return nil
}

func (i Image) writeWith(layer *os.File, path string) error {
	hash := sha256.New()
	if err := i.Root.writeTar(io.MultiWriter(layer, hash)); err != nil {
		return err
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	digest := "sha256:" + hex.EncodeToString(hash.Sum(nil))
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := i.writeArchive(file, layer, descriptor{MediaType: layerType, Digest: digest, Size: size}); err != nil {
		return err
	}
	return file.Close()
}

func (i Image) writeArchive(w io.Writer, layer io.Reader, layerAs descriptor) error {
	config, configAs := blob(configType, map[string]any{
		"created":      created,
		"architecture": runtime.GOARCH,
		"os":           "linux",
		"config":       map[string]any{"Env": i.Env, "Entrypoint": i.Entrypoint},
		"rootfs":       map[string]any{"type": "layers", "diff_ids": []string{layerAs.Digest}},
	})
	manifest, manifestAs := blob(manifestType, map[string]any{
		"schemaVersion": 2, "mediaType": manifestType, "config": configAs, "layers": []descriptor{layerAs},
	})
	manifestAs.Annotations = map[string]string{"io.containerd.image.name": i.Name}
	index, _ := blob(indexType, map[string]any{
		"schemaVersion": 2, "mediaType": indexType, "manifests": []descriptor{manifestAs},
	})

	archive := tar.NewWriter(w)
	members := []struct {
		name    string
		size    int64
		content io.Reader
	}{
		{"oci-layout", 0, strings.NewReader(`{"imageLayoutVersion":"1.0.0"}`)},
		{"index.json", 0, bytes.NewReader(index)},
		{blobPath(manifestAs), 0, bytes.NewReader(manifest)},
		{blobPath(configAs), 0, bytes.NewReader(config)},
		{blobPath(layerAs), layerAs.Size, layer},
	}
	for _, member := range members {
		size := member.size
		if sized, ok := member.content.(interface{ Len() int }); ok {
			size = int64(sized.Len())
		}
		if err := archive.WriteHeader(&tar.Header{Name: member.name, Mode: 0o644, Size: size, ModTime: created}); err != nil {
			return err
		}
		if _, err := io.Copy(archive, member.content); err != nil {
			return err
		}
	}
	return archive.Close()
}

// blob encodes one of the image's documents. They are maps of strings and
// numbers, which always encode.
func blob(mediaType string, document map[string]any) ([]byte, descriptor) {
	content, err := json.Marshal(document)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(content)
	return content, descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: int64(len(content))}
}

func blobPath(d descriptor) string {
	return "blobs/" + strings.Replace(d.Digest, ":", "/", 1)
}
