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

{{- define "aliquot.controllerServiceAccountName" -}}
{{- $account := .Values.controller.serviceAccount }}
{{- if $account.create }}
{{- default (printf "%s-controller" (include "aliquot.fullname" .)) $account.name }}
{{- else }}
{{- required "controller.serviceAccount.name: required when controller.serviceAccount.create is false" $account.name }}
{{- end }}
{{- end }}

{{/* What selects the controller's pods. Immutable in a Deployment. */}}
{{- define "aliquot.controllerSelectorLabels" -}}
app.kubernetes.io/name: {{ include "aliquot.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: controller
{{- end }}

{{- define "aliquot.certificatesSecret" -}}
{{ include "aliquot.fullname" . }}-controller-certificates
{{- end }}

{{/* Whether the class that a CEL expression names is of this driver: by its end, or because the values name it. */}}
{{- define "aliquot.isOurClass" -}}
{{- $driver := include "aliquot.driverName" .top -}}
('.' + {{ .class }}).endsWith('.{{ $driver }}')
{{- with include "aliquot.otherClasses" .top | fromJsonArray }} || {{ $.class }} in {{ toJson . | replace "\"" "'" }}{{ end }}
{{- end }}

{{/* What all webhooks have in common. */}}
{{- define "aliquot.webhook" -}}
clientConfig:
  service:
    name: {{ include "aliquot.fullname" .top }}-controller
    namespace: {{ include "aliquot.namespace" .top }}
    path: {{ .path }}
    port: 443
admissionReviewVersions: [v1]
sideEffects: {{ .sideEffects }}
matchPolicy: Equivalent
failurePolicy: {{ .top.Values.controller.failurePolicy }}
timeoutSeconds: {{ .top.Values.controller.timeoutSeconds }}
{{- end }}

{{/* Which claims or templates a webhook is sent: new ones of which a request may be for this driver. */}}
{{- define "aliquot.claimRules" -}}
{{- $driver := include "aliquot.driverName" .top -}}
rules:
- apiGroups: [resource.k8s.io]
  apiVersions: [v1]
  operations: [CREATE]
  resources: [{{ .resource }}]
  scope: Namespaced
matchConditions:
- name: concerns-this-driver
  expression: >-
    {{ .spec }}.?devices.?config.orValue([]).exists(c, c.?opaque.?driver.orValue('') == '{{ $driver }}') ||
    {{ .spec }}.?devices.?requests.orValue([]).exists(r,
      (has(r.exactly) ? [r.exactly] : r.?firstAvailable.orValue([])).exists(q,
        {{ include "aliquot.isOurClass" (dict "top" .top "class" "q.deviceClassName") }} ||
        q.?selectors.orValue([]).exists(s, s.?cel.?expression.orValue('').contains('{{ $driver }}'))))
{{- end }}
