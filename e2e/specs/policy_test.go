//go:build e2e

package specs_test

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"aliquot.dev/aliquot/api/v1alpha1"
	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/internal/inventory"
)

// A plugin that was taken over on one node must not speak for another. All requests are dry runs: admission judges
// them, and nothing is changed.
func TestPluginWritesOnlySlicesOfItsOwnNode(t *testing.T) {
	s := watch(t, sharing)
	plugin, err := s.Plugin(t.Context(), sharing)
	s.must(err)
	asPlugin := s.as("--bound-object-kind", "Pod", "--bound-object-name", plugin.Name, plugin.Spec.ServiceAccountName)
	unbound := s.as(plugin.Spec.ServiceAccountName)
	dryRun := []string{metav1.DryRunAll}
	create := func(client kubernetes.Interface, driver, node string) error {
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "policy-spec"},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: driver, NodeName: &node,
				Pool: resourceapi.ResourcePool{Name: inventory.PoolName(node), ResourceSliceCount: 1},
			},
		}, metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	remove := func(client kubernetes.Interface, node string) error {
		return client.ResourceV1().ResourceSlices().Delete(t.Context(), s.sliceOf(node), metav1.DeleteOptions{DryRun: dryRun})
	}

	const ownNode, ownDriver = "may write only the ResourceSlices of that node", "may write only ResourceSlices of driver " + v1alpha1.DriverName
	for _, c := range []struct {
		what    string
		err     error
		refusal string // empty if allowed
	}{
		{"the plugin creates a slice of its node", create(asPlugin, v1alpha1.DriverName, sharing), ""},
		{"the plugin deletes a slice of its node", remove(asPlugin, sharing), ""},
		{"the plugin creates a slice of another node", create(asPlugin, v1alpha1.DriverName, late), ownNode},
		{"the plugin deletes a slice of another node", remove(asPlugin, late), ownNode},
		{"the plugin creates another driver's slice", create(asPlugin, "gpu.example.com", sharing), ownDriver},
		{"a token that is not of a pod creates a slice", create(unbound, v1alpha1.DriverName, sharing), "must use the token of a pod that is bound to a node"},
		{"an administrator creates another driver's slice", create(s.Client, "gpu.example.com", late), ""},
		{"an administrator deletes a slice", remove(s.Client, late), ""},
	} {
		switch {
		case c.refusal == "" && c.err != nil:
			t.Errorf("%s: refused: %v", c.what, c.err)
		case c.refusal != "" && (!apierrors.IsForbidden(c.err) || !strings.Contains(c.err.Error(), c.refusal)):
			t.Errorf("%s: %v, want it forbidden with %q", c.what, c.err, c.refusal)
		}
	}
}

// as is a client with a token that kubectl makes for a service account of the plugin's namespace.
func (s *spec) as(args ...string) kubernetes.Interface {
	s.Helper()
	token, err := s.Kubectl(s.Context(), append([]string{"create", "token", "--namespace", release.Namespace}, args...)...)
	s.must(err)
	admin, err := s.RESTConfig()
	s.must(err)
	config := rest.AnonymousClientConfig(admin)
	config.BearerToken = strings.TrimSpace(token)
	client, err := kubernetes.NewForConfig(config)
	s.must(err)
	return client
}

// sliceOf names one slice of a node.
func (s *spec) sliceOf(node string) string {
	s.Helper()
	list, err := s.Client.ResourceV1().ResourceSlices().List(s.Context(), metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + node})
	s.must(err)
	if len(list.Items) == 0 {
		s.Fatalf("node %s has no slice", node)
	}
	return list.Items[0].Name
}
