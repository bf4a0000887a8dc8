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

{{- /* Where the API is, and the namespaces in which a calico-node counts: of manxd and of the installation of the plugin. */ -}}
{{- define "manx.places" -}}
- name: NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
{{- with .Values.calicoNamespaces }}
- name: MANX_CALICO_NAMESPACES
  value: {{ join "," . | quote }}
{{- end }}
{{- with .Values.kubernetesAPI.host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $.Values.kubernetesAPI.port | quote }}
{{- end }}
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

{{- /* Environment variables of the node's daemon and of the controllers: how they reach the datastore. */ -}}
{{- define "manx.env" -}}
{{- if eq .Values.datastore "etcd" }}
- name: DATASTORE_TYPE
  value: etcdv3
{{- if include "manx.adopted" . }}
# As Calico's manifest has it. The node's name comes from /var/lib/calico/nodename, else it is the host's.
- name: ETCD_ENDPOINTS
  valueFrom:
    configMapKeyRef:
      name: {{ .Values.etcd.configMap }}
      key: etcd_endpoints
- name: ETCD_CA_CERT_FILE
  valueFrom:
    configMapKeyRef: {name: {{ .Values.etcd.configMap }}, key: etcd_ca, optional: true}
- name: ETCD_KEY_FILE
  valueFrom:
    configMapKeyRef: {name: {{ .Values.etcd.configMap }}, key: etcd_key, optional: true}
- name: ETCD_CERT_FILE
  valueFrom:
    configMapKeyRef: {name: {{ .Values.etcd.configMap }}, key: etcd_cert, optional: true}
{{- else }}
- name: ETCD_ENDPOINTS
  value: {{ .Values.etcd.endpoints | quote }}
{{- if .Values.etcd.secret }}
- name: ETCD_CA_CERT_FILE
  value: /calico-secrets/etcd-ca
- name: ETCD_KEY_FILE
  value: /calico-secrets/etcd-key
- name: ETCD_CERT_FILE
  value: /calico-secrets/etcd-cert
{{- end }}
{{- end }}
{{- else }}
- name: DATASTORE_TYPE
  value: kubernetes
- name: CALICO_API_GROUP
  value: {{ .Values.calicoAPIGroup }}
{{- end }}
- name: WAIT_FOR_DATASTORE
  value: "true"
{{ include "manx.places" . }}
- name: MANX_LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- end }}
