//go:build e2e

package specs_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metadatav1beta1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"
	"k8s.io/utils/ptr"

	"aliquot.dev/aliquot/api/v1alpha1"
)

func TestContainerLearnsOfItsShareAndCannotChangeIt(t *testing.T) {
	s := begin(t, late)
	s.start("told", s.template("gpu", request{name: "gpu", memory: "1Gi", cores: "25"}), cuda("main"))
	uuid := s.held("told", "1Gi")[0].GPUs()[0]
	claims, err := s.Client.ResourceV1().ResourceClaims(s.namespace).List(t.Context(), metav1.ListOptions{})
	s.must(err)
	shareID := string(*claims.Items[0].Status.Allocation.Devices.Results[0].ShareID)

	s.checkMetadata(uuid)
	environment, err := s.exec("told", "main", "env")
	s.must(err)
	want := fmt.Sprintf("ALIQUOT_SHARE_%s=%s,memory=%d,cores=25\n", shareID[:8], uuid, bytesOf("1Gi"))
	if !strings.Contains(environment, want) {
		t.Errorf("the environment lacks %s", want)
	}
	share := "/run/aliquot/shares/" + uuid + "." + shareID
	for _, file := range []string{share + "/quota", share + "/agent", "/etc/ld.so.preload", "/run/aliquot/lib/libaliquot.so"} {
		s.checkReadOnly(file)
	}
	if got := s.alloc("told", "main"); got != 0 {
		t.Errorf("after all attempts, a process got %d bytes more", got)
	}
}

// checkMetadata reads the file of KEP-5304.
func (s *spec) checkMetadata(uuid string) {
	s.Helper()
	const file = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/gpu/gpu/" + v1alpha1.DriverName + "-metadata.json"
	content, err := s.exec("told", "main", "cat", file)
	s.must(err)
	var metadata metadatav1beta1.DeviceMetadata
	s.must(json.NewDecoder(strings.NewReader(content)).Decode(&metadata))
	if len(metadata.Requests) != 1 || len(metadata.Requests[0].Devices) != 1 {
		s.Fatalf("want one device of one request in %s", content)
	}
	attributes := metadata.Requests[0].Devices[0].Attributes
	if got := attributes[v1alpha1.AttributeUUID].StringValue; got == nil || *got != uuid {
		s.Errorf("the metadata has not GPU %s: %s", uuid, content)
	}
	devices, err := s.devices(context.Background(), s.node)
	s.must(err)
	for _, device := range devices {
		if ptr.Deref(device.Attributes[v1alpha1.AttributeUUID].StringValue, "") != uuid {
			continue
		}
		want := *device.Attributes[v1alpha1.AttributeProductName].StringValue
		if got := attributes[v1alpha1.AttributeProductName].StringValue; got == nil || *got != want {
			s.Errorf("the metadata has not product %s: %s", want, content)
		}
	}
}

// checkReadOnly lets the container's root try to write, remove, rename and cover a file. What the node itself writes into it, beyond
// its first words, does not count.
func (s *spec) checkReadOnly(file string) {
	s.Helper()
	digest := []string{"md5sum", file}
	if strings.HasSuffix(file, "/agent") {
		digest = []string{"sh", "-c", "head -c 8 " + file + " | md5sum"}
	}
	before, err := s.exec("told", "main", digest...)
	s.must(err)
	for _, attempt := range []string{
		"echo >> %s", "rm -f %s && test ! -e %[1]s", "mv %s %[1]s.moved", "chmod 666 %s", "mount -o remount,rw %s", "mount -t tmpfs none $(dirname %s)", "umount %s",
	} {
		if output, err := s.exec("told", "main", "sh", "-c", fmt.Sprintf(attempt, file)); err == nil {
			s.Errorf("the container's root can do %s: %s", fmt.Sprintf(attempt, file), output)
		}
	}
	if after, err := s.exec("told", "main", digest...); err != nil || after != before {
		s.Errorf("%s before: %s, after: %s (%v)", file, before, after, err)
	}
}
