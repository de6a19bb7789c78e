//go:build e2e

package specs_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"aliquot.dev/aliquot/e2e/release"
	"aliquot.dev/aliquot/e2e/scenario"
)

// rightsUnused lists what the chart's roles allow and none of the specs made anybody do: a right that nothing needs is
// one too many. It means something once all specs have run.
func rightsUnused(ctx context.Context, w *scenario.World) ([]string, error) {
	requests, err := w.Requests(release.Namespace)
	if err != nil {
		return nil, err
	}
	roles, err := boundRoles(ctx, w)
	if err != nil {
		return nil, err
	}
	var unused []string
	for account, rules := range roles {
		for _, right := range rights(rules) {
			if !slices.ContainsFunc(requests, func(e auditv1.Event) bool { return strings.HasSuffix(e.User.Username, ":"+account) && right.covers(e) }) {
				unused = append(unused, fmt.Sprintf("%s: %s", account, right))
			}
		}
	}
	slices.Sort(unused)
	return unused, nil
}

// right is one verb on one kind of object.
type right struct {
	verb, group, resource string
	names                 []string
}

func (r right) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s.%s %s", r.verb, r.resource, r.group, strings.Join(r.names, ",")))
}

func rights(rules []rbacv1.PolicyRule) (all []right) {
	for _, rule := range rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					all = append(all, right{verb, group, resource, rule.ResourceNames})
				}
			}
		}
	}
	return all
}

// covers says whether a request needed the right. Clients list by a watch that begins with what there is, and list where
// an API server cannot do that.
func (r right) covers(e auditv1.Event) bool {
	if e.ObjectRef == nil || e.Verb != r.verb && (r.verb != "list" || e.Verb != "watch") || e.ObjectRef.APIGroup != r.group {
		return false
	}
	resource := e.ObjectRef.Resource
	if e.ObjectRef.Subresource != "" {
		resource += "/" + e.ObjectRef.Subresource
	}
	return resource == r.resource && (len(r.names) == 0 || slices.Contains(r.names, e.ObjectRef.Name))
}

// boundRoles are the rules that each service account of the release has.
func boundRoles(ctx context.Context, w *scenario.World) (map[string][]rbacv1.PolicyRule, error) {
	ofRelease := metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=" + release.Name}
	roles := map[string][]rbacv1.PolicyRule{}
	cluster, err := w.Client.RbacV1().ClusterRoleBindings().List(ctx, ofRelease)
	if err != nil {
		return nil, err
	}
	for _, binding := range cluster.Items {
		role, err := w.Client.RbacV1().ClusterRoles().Get(ctx, binding.RoleRef.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		roles[binding.Subjects[0].Name] = append(roles[binding.Subjects[0].Name], role.Rules...)
	}
	local, err := w.Client.RbacV1().RoleBindings(release.Namespace).List(ctx, ofRelease)
	if err != nil {
		return nil, err
	}
	for _, binding := range local.Items {
		role, err := w.Client.RbacV1().Roles(release.Namespace).Get(ctx, binding.RoleRef.Name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		roles[binding.Subjects[0].Name] = append(roles[binding.Subjects[0].Name], role.Rules...)
	}
	return roles, nil
}
