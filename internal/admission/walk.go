package admission

import (
	"maps"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/operators"

	"aliquot.dev/aliquot/api/v1alpha1"
)

// value is what an expression stands for, as far as it leads to a name: device.attributes, device.capacity, or what
// those have in this driver's domain.
type value struct {
	capacity bool
	domain   bool // of this driver's domain
}

// bindings are the variables of cel.bind(name, value, expression).
type bindings map[string]value

// walk notes what an expression reads.
func (s *selector) walk(e ast.Expr, bound bindings) {
	switch e.Kind() {
	case ast.LiteralKind:
		if text, ok := e.AsLiteral().Value().(string); ok {
			s.literals = append(s.literals, text)
		}
	case ast.SelectKind:
		selected := e.AsSelect()
		s.note(selected.Operand(), selected.FieldName(), bound)
		if isDevice(selected.Operand()) && selected.FieldName() == "allowMultipleAllocations" {
			s.shared = true
		}
		s.walk(selected.Operand(), bound)
	case ast.CallKind:
		s.walkCall(e.AsCall(), bound)
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			s.walk(element, bound)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			s.walk(entry.AsMapEntry().Key(), bound)
			s.walk(entry.AsMapEntry().Value(), bound)
		}
	case ast.ComprehensionKind:
		s.walkLoop(e.AsComprehension(), bound)
	}
}

func (s *selector) walkCall(call ast.CallExpr, bound bindings) {
	args := call.Args()
	switch call.FunctionName() {
	case operators.Index, operators.OptIndex, operators.OptSelect:
		if name, ok := text(args[1]); ok {
			s.note(args[0], name, bound)
		}
	case operators.In:
		if name, ok := text(args[0]); ok {
			s.note(args[1], name, bound)
		}
	}
	if call.IsMemberFunction() {
		s.walk(call.Target(), bound)
	}
	for _, arg := range args {
		s.walk(arg, bound)
	}
}

// walkLoop covers all macros that bind a variable. That of cel.bind is the accumulator of a loop that never runs.
func (s *selector) walkLoop(loop ast.ComprehensionExpr, bound bindings) {
	s.walk(loop.IterRange(), bound)
	s.walk(loop.AccuInit(), bound)
	inner := maps.Clone(bound)
	if inner == nil {
		inner = bindings{}
	}
	delete(inner, loop.IterVar())
	delete(inner, loop.IterVar2())
	delete(inner, loop.AccuVar())
	if v, ok := resolve(loop.AccuInit(), bound); ok {
		inner[loop.AccuVar()] = v
	}
	s.walk(loop.LoopCondition(), inner)
	s.walk(loop.LoopStep(), inner)
	s.walk(loop.Result(), inner)
}

// note keeps a name that is looked up in this driver's domain.
func (s *selector) note(of ast.Expr, name string, bound bindings) {
	if v, ok := resolve(of, bound); ok && v.domain {
		s.names = append(s.names, reference{capacity: v.capacity, name: name})
	}
}

// resolve follows an expression that leads to names.
func resolve(e ast.Expr, bound bindings) (value, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		v, ok := bound[e.AsIdent()]
		return v, ok
	case ast.SelectKind:
		selected := e.AsSelect()
		if !isDevice(selected.Operand()) {
			return value{}, false
		}
		switch selected.FieldName() {
		case "attributes":
			return value{}, true
		case "capacity":
			return value{capacity: true}, true
		}
	case ast.CallKind:
		return resolveCall(e.AsCall(), bound)
	}
	return value{}, false
}

func resolveCall(call ast.CallExpr, bound bindings) (value, bool) {
	switch name := call.FunctionName(); name {
	case operators.Index, operators.OptIndex:
		v, ok := resolve(call.Args()[0], bound)
		domain, isText := text(call.Args()[1])
		v.domain = true
		return v, ok && isText && domain == v1alpha1.DriverName
	case "orValue", "value": // of an optional
		if call.IsMemberFunction() {
			return resolve(call.Target(), bound)
		}
	}
	return value{}, false
}

func isDevice(e ast.Expr) bool {
	return e.Kind() == ast.IdentKind && e.AsIdent() == "device"
}

func text(e ast.Expr) (string, bool) {
	if e.Kind() != ast.LiteralKind {
		return "", false
	}
	t, ok := e.AsLiteral().Value().(string)
	return t, ok
}
