package deployments

import (
	"fmt"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admission/v1"
	admissionapi "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	apiservercel "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/utils/ptr"
)

const (
	pluginUser   = "system:serviceaccount:" + namespace + ":" + release
	nodeNameInfo = "authentication.kubernetes.io/node-name"
)

func slice(driver, node string) *resourceapi.ResourceSlice {
	s := &resourceapi.ResourceSlice{Spec: resourceapi.ResourceSliceSpec{Driver: driver}}
	if node == "" {
		s.Spec.AllNodes = ptr.To(true)
	} else {
		s.Spec.NodeName = ptr.To(node)
	}
	return s
}

// What the API server would decide of a request, by its own CEL compiler.
func TestPolicyGuardsOtherNodesSlices(t *testing.T) {
	const driver = "gpu.aliquot.dev"
	mine, other, everywhere, foreign := slice(driver, "node-a"), slice(driver, "node-b"), slice(driver, ""), slice("gpu.nvidia.com", "node-a")
	nodeA := map[string]authenticationv1.ExtraValue{nodeNameInfo: {"node-a"}}
	const wrongNode, noNode, wrongDriver = "of that node", "bound to a node", "of driver gpu.aliquot.dev"

	tests := []struct {
		name      string
		user      string // default: the plugin
		extra     map[string]authenticationv1.ExtraValue
		operation admissionv1.Operation
		object    *resourceapi.ResourceSlice
		old       *resourceapi.ResourceSlice
		want      string // in the message; "" means allowed
	}{
		{name: "create its own", extra: nodeA, operation: admissionv1.Create, object: mine},
		{name: "update its own", extra: nodeA, operation: admissionv1.Update, object: mine, old: mine},
		{name: "delete its own", extra: nodeA, operation: admissionv1.Delete, old: mine},
		{name: "create another node's", extra: nodeA, operation: admissionv1.Create, object: other, want: wrongNode},
		{name: "update another node's", extra: nodeA, operation: admissionv1.Update, object: other, old: other, want: wrongNode},
		{name: "take another node's over", extra: nodeA, operation: admissionv1.Update, object: mine, old: other, want: wrongNode},
		{name: "give its own away", extra: nodeA, operation: admissionv1.Update, object: other, old: mine, want: wrongNode},
		{name: "delete another node's", extra: nodeA, operation: admissionv1.Delete, old: other, want: wrongNode},
		{name: "create for all nodes", extra: nodeA, operation: admissionv1.Create, object: everywhere, want: wrongNode},
		{name: "create another driver's", extra: nodeA, operation: admissionv1.Create, object: foreign, want: wrongDriver},
		{name: "delete another driver's", extra: nodeA, operation: admissionv1.Delete, old: foreign, want: wrongDriver},
		{name: "token without node", extra: map[string]authenticationv1.ExtraValue{"other": {"x"}}, operation: admissionv1.Create, object: mine, want: noNode},
		{name: "token without node, for all nodes", extra: map[string]authenticationv1.ExtraValue{nodeNameInfo: {}}, operation: admissionv1.Create, object: everywhere, want: noNode},
		{name: "user without extra", operation: admissionv1.Delete, old: mine, want: noNode},
		{name: "another driver's plugin", user: "system:serviceaccount:nvidia:plugin", operation: admissionv1.Create, object: foreign},
		{name: "same account name elsewhere", user: "system:serviceaccount:default:" + release, operation: admissionv1.Create, object: other},
		{name: "kubelet wipes", user: "system:node:node-b", operation: admissionv1.Delete, old: mine},
	}
	policy := compilePolicy(t, named[*admissionapi.ValidatingAdmissionPolicy](t, decode(t, mustTemplate(t)), "-resourceslices"))
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			user := tc.user
			if user == "" {
				user = pluginUser
			}
			attributes := &admission.VersionedAttributes{VersionedKind: resourceapi.SchemeGroupVersion.WithKind("ResourceSlice")}
			// A nil pointer in an interface is not nil.
			if tc.object != nil {
				attributes.VersionedObject.Set(tc.object)
			}
			if tc.old != nil {
				attributes.VersionedOldObject.Set(tc.old)
			}
			got := policy.decide(t, &admissionv1.AdmissionRequest{
				Operation: tc.operation,
				UserInfo:  authenticationv1.UserInfo{Username: user, Extra: tc.extra},
			}, attributes, nil)
			if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
				t.Errorf("refused with %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPolicyMatchesAllWrites(t *testing.T) {
	spec := named[*admissionapi.ValidatingAdmissionPolicy](t, decode(t, mustTemplate(t)), "-resourceslices").Spec
	if len(spec.MatchConstraints.ResourceRules) != 1 {
		t.Fatalf("got %d rules, want 1", len(spec.MatchConstraints.ResourceRules))
	}
	rule := spec.MatchConstraints.ResourceRules[0]
	if got := fmt.Sprint(rule.APIGroups, rule.Resources, rule.Operations); got != "[resource.k8s.io] [resourceslices] [CREATE UPDATE DELETE]" {
		t.Errorf("the policy sees %s", got)
	}
	if *spec.MatchConstraints.MatchPolicy != admissionapi.Equivalent || *spec.FailurePolicy != admissionapi.Fail {
		t.Errorf("got %s and %s: other API versions or a broken expression would go by", *spec.MatchConstraints.MatchPolicy, *spec.FailurePolicy)
	}
	binding := named[*admissionapi.ValidatingAdmissionPolicyBinding](t, decode(t, mustTemplate(t)), "-resourceslices").Spec
	if got := fmt.Sprint(binding.ValidationActions); got != "[Deny]" || binding.MatchResources != nil {
		t.Errorf("the binding does %s, to %v", got, binding.MatchResources)
	}
}

// expression is one of the policy's, with the type that it must have.
type expression struct {
	name, text string
	kind       *celgo.Type
}

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{e.kind} }

type compiledPolicy struct {
	compiler                          *cel.CompositedCompiler
	conditions, validations, messages cel.ConditionEvaluator
	policy                            *admissionapi.ValidatingAdmissionPolicy
}

func compilePolicy(t *testing.T, policy *admissionapi.ValidatingAdmissionPolicy) compiledPolicy {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	declared := cel.OptionalVariableDeclarations{HasParams: policy.Spec.ParamKind != nil}
	for _, v := range policy.Spec.Variables {
		result := compiler.CompileAndStoreVariable(expression{v.Name, v.Expression, celgo.AnyType}, declared, environment.NewExpressions)
		if result.Error != nil {
			t.Fatalf("compile variable %s: %v", v.Name, result.Error)
		}
	}
	compile := func(what string, expressions []cel.ExpressionAccessor) cel.ConditionEvaluator {
		evaluator := compiler.CompileCondition(expressions, declared, environment.NewExpressions)
		for _, err := range evaluator.CompilationErrors() {
			t.Fatalf("compile %s: %v", what, err)
		}
		return evaluator
	}
	var conditions, validations, messages []cel.ExpressionAccessor
	for _, c := range policy.Spec.MatchConditions {
		conditions = append(conditions, expression{c.Name, c.Expression, celgo.BoolType})
	}
	for _, v := range policy.Spec.Validations {
		validations = append(validations, expression{"", v.Expression, celgo.BoolType})
		text := v.MessageExpression
		if text == "" {
			text = fmt.Sprintf("%q", v.Message)
		}
		messages = append(messages, expression{"", text, celgo.StringType})
	}
	return compiledPolicy{
		compiler:    compiler,
		conditions:  compile("match conditions", conditions),
		validations: compile("validations", validations),
		messages:    compile("messages", messages),
		policy:      policy,
	}
}

// decide returns the message with which the request is refused, or "". An error of an expression fails the test: it
// would refuse the request, but with a message that helps nobody.
func (p compiledPolicy) decide(t *testing.T, request *admissionv1.AdmissionRequest, attributes *admission.VersionedAttributes, params runtime.Object) string {
	t.Helper()
	evaluate := func(evaluator cel.ConditionEvaluator, budget int64) []cel.EvaluationResult {
		results, _, err := evaluator.ForInput(p.compiler.CreateContext(t.Context()), attributes, request,
			cel.OptionalVariableBindings{VersionedParams: params}, nil, budget)
		if err != nil {
			t.Fatal(err)
		}
		return results
	}
	value := func(r cel.EvaluationResult) any {
		if r.Error != nil {
			t.Fatalf("evaluate %s: %v", r.ExpressionAccessor.GetExpression(), r.Error)
		}
		return r.EvalResult.Value()
	}
	for _, condition := range evaluate(p.conditions, apiservercel.RuntimeCELCostBudgetMatchConditions) {
		if value(condition) != true {
			return ""
		}
	}
	refusal := ""
	for i, validation := range evaluate(p.validations, apiservercel.RuntimeCELCostBudget) {
		if value(validation) != true && refusal == "" {
			refusal = value(evaluate(p.messages, apiservercel.RuntimeCELCostBudget)[i]).(string) // those of what holds need not make sense
		}
	}
	return refusal
}
