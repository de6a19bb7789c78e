package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is that of the kinds that the API server stores.
var GroupVersion = schema.GroupVersion{Group: DriverName, Version: "v1alpha1"}

var builder = runtime.NewSchemeBuilder(func(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ShareQuota{}, &ShareQuotaList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
})

// AddToScheme tells a scheme of the kinds that the API server stores.
var AddToScheme = builder.AddToScheme
