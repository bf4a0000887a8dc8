{{- /* The variables of each container, before extraEnv. */ -}}
{{- define "manx.installEnv" -}}
- name: CALICO_K8S_NODE_REF
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{ include "manx.places" . }}
{{- end }}

{{- define "manx.daemonEnv" -}}
{{- $etcd := eq .Values.datastore "etcd" }}
{{- $adopted := include "manx.adopted" . }}
{{ include "manx.env" . }}
{{- if $etcd }}
{{- if $adopted }}
- name: CNI_MTU
  valueFrom:
    configMapKeyRef: {name: {{ .Values.etcd.configMap }}, key: veth_mtu, optional: true}
- name: CNI_NETWORK_CONFIG
  valueFrom:
    configMapKeyRef: {name: {{ .Values.etcd.configMap }}, key: cni_network_config, optional: true}
{{- end }}
- name: CALICO_K8S_NODE_REF
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- else }}
- name: NODENAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- end }}
{{- if ne .Values.networking "auto" }}
- name: CALICO_NETWORKING_BACKEND
  value: {{ .Values.networking }}
{{- else if $adopted }}
- name: CALICO_NETWORKING_BACKEND
  valueFrom:
    configMapKeyRef: {name: {{ .Values.etcd.configMap }}, key: calico_backend, optional: true}
{{- end }}
{{- with .Values.cni.foreignInterfaces }}
- name: FELIX_INTERFACEPREFIX
  value: {{ . | quote }}
{{- end }}
- name: CLUSTER_TYPE
  value: k8s{{ if has .Values.networking (list "auto" "bird") }},bgp{{ end }}
{{- if ne .Values.networking "none" }}
- name: IP
  value: {{ .Values.node.ip | quote }}
- name: IP_AUTODETECTION_METHOD
  value: {{ .Values.node.ipAutodetectionMethod | quote }}
{{- with .Values.node.ip6 }}
- name: IP6
  value: {{ . | quote }}
- name: IP6_AUTODETECTION_METHOD
  value: {{ $.Values.node.ip6AutodetectionMethod | quote }}
{{- end }}
{{- with .Values.node.asNumber }}
- name: AS
  value: {{ . | toString | quote }}
{{- end }}
{{- end }}
{{- if eq .Values.networking "none" }}
{{- else if .Values.pools.create }}
{{- range $family, $pool := dict "4" .Values.pools.ipv4 "6" .Values.pools.ipv6 }}
{{- with $pool.cidr }}
- name: CALICO_IPV{{ $family }}POOL_CIDR
  value: {{ . | quote }}
{{- end }}
- name: CALICO_IPV{{ $family }}POOL_BLOCK_SIZE
  value: {{ $pool.blockSize | quote }}
- name: CALICO_IPV{{ $family }}POOL_NAT_OUTGOING
  value: {{ $pool.natOutgoing | quote }}
- name: CALICO_IPV{{ $family }}POOL_NODE_SELECTOR
  value: {{ $pool.nodeSelector | quote }}
{{- if ne $pool.vxlanMode "Never" }}
- name: CALICO_IPV{{ $family }}POOL_VXLAN
  value: {{ $pool.vxlanMode }}
{{- end }}
{{- end }}
- name: CALICO_IPV4POOL_IPIP
  value: {{ .Values.pools.ipv4.ipipMode }}
{{- else }}
- name: NO_DEFAULT_POOLS
  value: "true"
{{- end }}
{{- if .Values.bgp.configuration }}
# The release has it, and Helm takes over none that manxd has made.
- name: MANX_NO_DEFAULT_BGP_CONFIGURATION
  value: "true"
{{- end }}
{{- if not .Values.policy.enabled }}
- name: MANX_POLICY
  value: "false"
{{- end }}
{{- if .Values.policy.counters }}
- name: MANX_POLICY_COUNTERS
  value: "true"
{{- end }}
{{- with .Values.policy.flowLog }}
- name: MANX_FLOW_LOG
  value: {{ . | quote }}
{{- end }}
- name: MANX_POLICY_MAX_RULES
  value: {{ int64 .Values.policy.maxRules | quote }}
- name: MANX_POLICY_MAX_SETS
  value: {{ int64 .Values.policy.maxSets | quote }}
- name: MANX_POLICY_MAX_ELEMENTS
  value: {{ int64 .Values.policy.maxElements | quote }}
{{- if .Values.bgp.refuseDefaultRoute }}
- name: MANX_BGP_REFUSE_DEFAULT_ROUTE
  value: "true"
{{- end }}
{{- if .Values.bgp.refuseConnectedRoutes }}
- name: MANX_BGP_REFUSE_CONNECTED_ROUTES
  value: "true"
{{- end }}
{{- if .Values.bgp.refusePoolRoutes }}
- name: MANX_BGP_REFUSE_POOL_ROUTES
  value: "true"
{{- end }}
- name: MANX_BGP_MAX_PREFIXES
  value: {{ int64 .Values.bgp.maxPrefixes | quote }}
- name: FELIX_DEFAULTENDPOINTTOHOSTACTION
  value: {{ .Values.policy.endpointToHostAction }}
# The Deployment manx-controllers has them, with rights of its own.
- name: MANX_CONTROLLERS
  value: "off"
{{- if include "manx.plugin" . }}
# The CNI configuration is written when the node can serve pods.
- name: MANX_CNI_CONF_DIR
  value: /host/etc/cni/net.d
- name: CNI_NET_DIR
  value: {{ .Values.cni.confDir }}
- name: CNI_CONF_NAME
  value: {{ .Values.cni.confName }}
{{- if not $adopted }}
- name: CNI_MTU
  value: {{ .Values.cni.mtu | quote }}
{{- with .Values.cni.networkConfig }}
- name: CNI_NETWORK_CONFIG
  value: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
- name: MANX_HTTP_LISTEN
  value: "{{ if not .Values.http.exposed }}127.0.0.1{{ end }}:{{ .Values.http.port }}"
{{- with .Values.acceptSettings }}
- name: MANX_ACCEPT_SETTINGS
  value: {{ join "," . | quote }}
{{- end }}
# In a container that is not privileged /proc/sys is read-only.
- name: MANX_PROC_SYS_NET
  value: /host/proc-sys-net
{{- end }}

{{- /* These are the chart's alone: extraEnv does not change them. */ -}}
{{- define "manx.candidateEnv" -}}
# Its name in the election.
- name: NODENAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- end }}

{{- define "manx.controllersEnv" -}}
{{ include "manx.candidateEnv" . }}
- name: MANX_CONTROLLERS
  value: {{ .Values.controllers | quote }}
- name: MANX_HTTP_LISTEN
  value: "{{ if not .Values.http.exposed }}127.0.0.1{{ end }}:{{ .Values.http.controllersPort }}"
{{- end }}
