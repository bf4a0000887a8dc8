{{- define "manx.labels" -}}
app.kubernetes.io/name: manx
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "manx.selector" -}}
k8s-app: manx-node
app.kubernetes.io/name: manx
{{- end }}

{{- define "manx.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "manx.group" -}}
{{ splitList "/" .Values.calicoAPIGroup | first }}
{{- end }}

{{- /* The name of the allocator's configuration in the group. */ -}}
{{- define "manx.ipamconfigs" -}}
{{ if eq (include "manx.group" .) "projectcalico.org" }}ipamconfigurations{{ else }}ipamconfigs{{ end }}
{{- end }}

{{- /* Whether etcd's settings come from the ConfigMap of an installation of Calico. */ -}}
{{- define "manx.adopted" -}}
{{ if and (eq .Values.datastore "etcd") (not .Values.etcd.endpoints) }}true{{ end }}
{{- end }}
