package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// DecodeShareClass reads the parameters of a class. It returns everything that is wrong with them, each with its path
// below path.
func DecodeShareClass(raw []byte, path *field.Path) (*ShareClass, field.ErrorList) {
	var class ShareClass
	if errs := decode(raw, path, KindShareClass, "a class", &class); len(errs) > 0 {
		return nil, errs
	}
	return &class, class.Validate(path)
}

// DecodeShareConfig is DecodeShareClass for the parameters of a claim.
func DecodeShareConfig(raw []byte, path *field.Path) (*ShareConfig, field.ErrorList) {
	var config ShareConfig
	if errs := decode(raw, path, KindShareConfig, "a claim", &config); len(errs) > 0 {
		return nil, errs
	}
	return &config, config.Validate(path)
}

// decode is strict: a field that is unknown or stands there twice is an error, and so is another kind.
func decode(raw []byte, path *field.Path, kind, of string, into any) field.ErrorList {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(raw, &meta); err != nil {
		return field.ErrorList{field.Invalid(path, excerpt(raw), fmt.Sprintf("no JSON object: %v", err))}
	}
	var errs field.ErrorList
	if meta.APIVersion != APIVersion {
		errs = append(errs, field.NotSupported(path.Child("apiVersion"), meta.APIVersion, []string{APIVersion}))
	}
	if meta.Kind != kind {
		errs = append(errs, field.NotSupported(path.Child("kind"), meta.Kind, []string{kind}))
	}
	if len(errs) > 0 {
		return errs
	}
	strict, err := kjson.UnmarshalStrict(raw, into)
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) && wrong.Field != "" {
		return field.ErrorList{field.TypeInvalid(path.Child(wrong.Field), wrong.Value, "want "+inWords(wrong.Type.Kind()))}
	}
	if err != nil {
		return field.ErrorList{field.Invalid(path, excerpt(raw), err.Error())}
	}
	for _, err := range strict {
		errs = append(errs, field.Invalid(path, kind, err.Error()+" in the parameters of "+of))
	}
	return errs
}

// inWords says what JSON is wanted for a type of Go.
func inWords(kind reflect.Kind) string {
	switch kind {
	case reflect.Int:
		return "a whole number"
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	}
	return "an object"
}

// excerpt keeps an error short whatever it quotes.
func excerpt(raw []byte) string {
	const most = 100
	if len(raw) <= most {
		return string(raw)
	}
	return strings.ToValidUTF8(string(raw[:most]), "") + "..."
}

// Validate returns everything that is wrong with a class.
func (c *ShareClass) Validate(path *field.Path) field.ErrorList {
	errs := validateSettings(path, c.CorePolicy, c.Enforcement)
	if c.Memory != nil {
		errs = append(errs, c.Memory.validate(path.Child("memory"))...)
	}
	if c.Cores != nil {
		errs = append(errs, c.Cores.validate(path.Child("cores"))...)
	}
	if c.ClaimsMaySet != nil {
		for i, name := range *c.ClaimsMaySet {
			if known := []string{FieldCorePolicy, FieldEnforcement}; !slices.Contains(known, name) {
				errs = append(errs, field.NotSupported(path.Child("claimsMaySet").Index(i), name, known))
			}
		}
	}
	return errs
}

// Validate returns everything that is wrong with a claim's parameters by themselves.
func (c *ShareConfig) Validate(path *field.Path) field.ErrorList {
	return validateSettings(path, c.CorePolicy, c.Enforcement)
}

func validateSettings(path *field.Path, policy CorePolicy, enforcement Enforcement) (errs field.ErrorList) {
	if known := []CorePolicy{CoreFixed, CoreBurst}; policy != "" && !slices.Contains(known, policy) {
		errs = append(errs, field.NotSupported(path.Child(FieldCorePolicy), policy, known))
	}
	if known := []Enforcement{EnforcePreload, EnforceNone}; enforcement != "" && !slices.Contains(known, enforcement) {
		errs = append(errs, field.NotSupported(path.Child(FieldEnforcement), enforcement, known))
	}
	return errs
}

func (b *MemoryBounds) validate(path *field.Path) (errs field.ErrorList) {
	for _, bound := range []struct {
		name string
		*resource.Quantity
	}{{"min", b.Min}, {"max", b.Max}, {"default", b.Default}} {
		if bound.Quantity == nil {
			continue
		}
		if bytes, exact := WholeNumber(*bound.Quantity); !exact || bytes < MemoryStep {
			errs = append(errs, field.Invalid(path.Child(bound.name), bound.String(), "want a whole number of bytes, 1Mi at least"))
		}
	}
	if b.Min != nil && b.Max != nil && b.Min.Cmp(*b.Max) > 0 {
		errs = append(errs, field.Invalid(path.Child("min"), b.Min.String(), "is more than max, "+b.Max.String()))
	}
	if len(errs) > 0 || b.Default == nil {
		return errs
	}
	path = path.Child("default")
	switch {
	case b.Default.Value()%MemoryStep != 0:
		return field.ErrorList{field.Invalid(path, b.Default.String(), "want whole Mi, in which memory is shared out")}
	case b.Min != nil && b.Default.Cmp(*b.Min) < 0:
		return field.ErrorList{field.Invalid(path, b.Default.String(), "is less than min, "+b.Min.String())}
	case b.Max != nil && b.Default.Cmp(*b.Max) > 0:
		return field.ErrorList{field.Invalid(path, b.Default.String(), "is more than max, "+b.Max.String())}
	}
	return nil
}

func (b *CoreBounds) validate(path *field.Path) (errs field.ErrorList) {
	for _, bound := range []struct {
		name    string
		percent *int
	}{{"min", b.Min}, {"max", b.Max}, {"default", b.Default}} {
		if bound.percent != nil && (*bound.percent < 0 || *bound.percent > AllCores) {
			errs = append(errs, field.Invalid(path.Child(bound.name), *bound.percent, fmt.Sprintf("want a percentage from 0 to %d", AllCores)))
		}
	}
	if b.Min != nil && b.Max != nil && *b.Min > *b.Max {
		errs = append(errs, field.Invalid(path.Child("min"), *b.Min, fmt.Sprintf("is more than max, %d", *b.Max)))
	}
	if len(errs) > 0 || b.Default == nil {
		return errs
	}
	switch {
	case b.Min != nil && *b.Default < *b.Min:
		return field.ErrorList{field.Invalid(path.Child("default"), *b.Default, fmt.Sprintf("is less than min, %d", *b.Min))}
	case b.Max != nil && *b.Default > *b.Max:
		return field.ErrorList{field.Invalid(path.Child("default"), *b.Default, fmt.Sprintf("is more than max, %d", *b.Max))}
	}
	return nil
}
