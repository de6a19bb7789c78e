{{/* The driver's name, which is also the domain of its attributes. It is compiled in, so it is no value. */}}
{{- define "aliquot.driverName" -}}
gpu.aliquot.dev
{{- end }}

{{- define "aliquot.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* <release>-<name>, or the release alone where it contains the name. 50 leaves room for what is added to it. */}}
{{- define "aliquot.fullname" -}}
{{- $name := include "aliquot.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "aliquot.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride }}
{{- end }}

{{- define "aliquot.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "aliquot.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name: required when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* The user name that the service account's token has, as RBAC and admission see it. */}}
{{- define "aliquot.serviceAccountUser" -}}
{{- printf "system:serviceaccount:%s:%s" (include "aliquot.namespace" .) (include "aliquot.serviceAccountName" .) }}
{{- end }}

{{- define "aliquot.image" -}}
{{- printf "%s:%s" .Values.image.repository (default (printf "v%s" .Chart.AppVersion) .Values.image.tag) }}
{{- end }}

{{/* What selects the plugin's pods. Immutable in a DaemonSet, so nothing that a new version changes. */}}
{{- define "aliquot.selectorLabels" -}}
app.kubernetes.io/name: {{ include "aliquot.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: kubelet-plugin
{{- end }}

{{- define "aliquot.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
app.kubernetes.io/name: {{ include "aliquot.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Device classes of this driver that their names do not tell, as a JSON list: those of the chart, and those that others made. */}}
{{- define "aliquot.otherClasses" -}}
{{- $names := list }}
{{- range .Values.deviceClasses }}
{{- $names = append $names .name }}
{{- end }}
{{- $others := list }}
{{- range concat $names (.Values.controller.deviceClasses | default list) }}
{{- if not (or (eq . (include "aliquot.driverName" $)) (hasSuffix (printf ".%s" (include "aliquot.driverName" $)) .)) }}
{{- $others = append $others . }}
{{- end }}
{{- end }}
{{- $others | uniq | toJson }}
{{- end }}
