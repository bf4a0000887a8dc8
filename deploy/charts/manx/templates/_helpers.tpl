{{- define "manx.labels" -}}
app.kubernetes.io/name: manx
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- /* .of with labels that have precedence, for an object whose labels the values name: a key may be there once. */ -}}
{{- define "manx.labelsWith" -}}
{{- toYaml (merge (dict) (default dict .labels) (include "manx.labels" .of | fromYaml)) -}}
{{- end }}

{{- /* Labels of pods beside those by which they are selected: commonLabels and .labels. */ -}}
{{- define "manx.podLabels" -}}
{{- with merge (dict) (default dict .labels) (default dict .of.Values.commonLabels) }}{{ toYaml . }}{{ end -}}
{{- end }}


{{- define "manx.selector" -}}
k8s-app: manx-node
app.kubernetes.io/name: manx
{{- end }}

{{- /* With global.imageRegistry, the registry in the repository's name counts no more. */ -}}
{{- define "manx.image" -}}
{{- $repository := .Values.image.repository -}}
{{- with (.Values.global).imageRegistry -}}
{{- $repository = printf "%s/%s" . (regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" $repository "") -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end }}

{{- define "manx.pullSecrets" -}}
{{- $names := list -}}
{{- range concat (default list (.Values.global).imagePullSecrets) .Values.image.pullSecrets -}}
{{- if kindIs "string" . -}}
{{- $names = append $names . -}}
{{- else -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- end -}}
{{- with uniq $names -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end -}}
{{- end }}

{{- /* The list of variables .env without those that .extra names, then .extra: a name twice in the list would be refused by
       server-side apply. */ -}}
{{- define "manx.override" -}}
{{- $names := dict -}}
{{- range .extra }}{{ $_ := set $names .name true }}{{ end -}}
{{- $list := list -}}
{{- range fromYamlArray .env -}}
{{- if not (hasKey $names .name) }}{{ $list = append $list . }}{{ end -}}
{{- end -}}
{{- with concat $list .extra }}{{ toYaml . }}{{ end -}}
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

{{- /* Whether Helm knows the kinds of the cluster: it asks the server, or Argo CD has told it (--api-versions). */ -}}
{{- define "manx.known" -}}
{{ if .Capabilities.APIVersions.Has "v1/Pod" }}true{{ end }}
{{- end }}

{{- /* Whether Helm can look up objects of the cluster, which Argo CD's cannot: each cluster has this namespace. */ -}}
{{- define "manx.online" -}}
{{ if lookup "v1" "Namespace" "" "kube-system" }}true{{ end }}
{{- end }}

{{- /* The API groups in which Calico's custom resources may be, for rights and policies: the one in force, which is
       crd.projectcalico.org where the cluster has it, as manxd detects it, or both where that cannot be known. */ -}}
{{- define "manx.groups" -}}
{{- if eq .Values.calicoAPIGroup "both" -}}
crd.projectcalico.org, projectcalico.org
{{- else if ne .Values.calicoAPIGroup "auto" -}}
{{ splitList "/" .Values.calicoAPIGroup | first }}
{{- else if .Capabilities.APIVersions.Has "crd.projectcalico.org/v1" -}}
crd.projectcalico.org
{{- else if include "manx.online" . -}}
projectcalico.org
{{- else -}}
crd.projectcalico.org, projectcalico.org
{{- end -}}
{{- end }}

{{- /* The group in force with its version; empty where manxd has to detect it. */ -}}
{{- define "manx.group" -}}
{{- $groups := include "manx.groups" . -}}
{{- if not (contains "," $groups) -}}
{{ $groups }}/{{ if eq $groups "projectcalico.org" }}v3{{ else }}v1{{ end }}
{{- end -}}
{{- end }}

{{- /* The group of objects that are rendered. */ -}}
{{- define "manx.objectGroup" -}}
{{ include "manx.group" . | default "projectcalico.org/v3" }}
{{- end }}

{{- /* What becomes of definitions: auto, on, only or off. */ -}}
{{- define "manx.definitions" -}}
{{ (.Values.crds).install | default "auto" }}
{{- end }}

{{- /* Whether the release has more than definitions. */ -}}
{{- define "manx.all" -}}
{{ if ne (include "manx.definitions" .) "only" }}true{{ end }}
{{- end }}

{{- /* The objects of Calico's kinds in the values, as {objects: [{kind, place, value}]} in JSON. */ -}}
{{- define "manx.objects" -}}
{{- $list := list -}}
{{- with .Values.bgp.configuration -}}
{{- $list = append $list (dict "kind" "BGPConfiguration" "place" "bgp.configuration" "value" (merge (dict "name" "default") .)) -}}
{{- end -}}
{{- range $place, $kind := dict "bgp.filters" "BGPFilter" "bgp.peers" "BGPPeer" "pools.objects" "IPPool" -}}
{{- $path := splitList "." $place -}}
{{- range index $.Values (first $path) (last $path) -}}
{{- $list = append $list (dict "kind" $kind "place" (printf "%s, %s" $place .name) "value" .) -}}
{{- end -}}
{{- end -}}
{{ dict "objects" $list | toJson }}
{{- end }}

{{- /* The annotations by which Helm and Argo CD never delete an object. */ -}}
{{- define "manx.stays" -}}
helm.sh/resource-policy: keep
argocd.argoproj.io/sync-options: Prune=false,Delete=false
{{- end }}

{{- /* "true" if an address with the length of a prefix, such as 10.0.0.1/8, has bits beyond that length. */ -}}
{{- define "manx.hostBits" -}}
{{- $parts := splitList "/" . -}}
{{- $length := last $parts | int -}}
{{- $width := 8 -}}
{{- $groups := splitList "." (first $parts) -}}
{{- if contains ":" . -}}
{{- $width = 16 -}}
{{- $halves := splitList "::" (first $parts) -}}
{{- $groups = list -}}
{{- range $i, $half := $halves -}}
{{- $own := splitList ":" $half | compact -}}
{{- if eq $i 1 -}}
{{- range until (max 0 (sub 8 (add (len $groups) (len $own))) | int) }}{{ $groups = append $groups "0" }}{{ end -}}
{{- end -}}
{{- $groups = concat $groups $own -}}
{{- end -}}
{{- end -}}
{{- range $i, $group := $groups -}}
{{- $size := 1 -}}
{{- range until (min $width (max 0 (sub (mul (add1 $i) $width) $length)) | int) }}{{ $size = mul 2 $size }}{{ end -}}
{{- if eq $width 16 }}{{ $group = printf "0x%s" $group }}{{ end -}}
{{- if mod (int64 $group) $size }}true{{ end -}}
{{- end -}}
{{- end }}

{{- /* The names of the allocator's configuration in the groups. */ -}}
{{- define "manx.ipamconfigs" -}}
{{- $groups := include "manx.groups" . -}}
{{ if contains "," $groups }}ipamconfigs, ipamconfigurations
{{- else if eq $groups "projectcalico.org" }}ipamconfigurations{{ else }}ipamconfigs{{ end }}
{{- end }}

{{- /* Whether etcd's settings come from the ConfigMap of an installation of Calico. */ -}}
{{- define "manx.adopted" -}}
{{ if and (eq .Values.datastore "etcd") (not .Values.etcd.endpoints) }}true{{ end }}
{{- end }}

{{- /* Whether there are admission policies. Before Kubernetes 1.31 no token can be bound to a Node. */ -}}
{{- define "manx.admission" -}}
{{- $able := and (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1") (semverCompare ">=1.31-0" .Capabilities.KubeVersion.Version) -}}
{{ if and (include "manx.all" .) (or (eq .Values.admission.policies "on") (and (eq .Values.admission.policies "auto") $able)) }}true{{ end }}
{{- end }}

{{- /* The match condition for requests of nodes' accounts, which are a list. */ -}}
{{- define "manx.ofNodes" -}}
- name: of-a-node
  expression: "request.userInfo.username in [{{ range $i, $a := . }}{{ if $i }}, {{ end }}'{{ $a }}'{{ end }}]"
{{- end }}

{{- /* The variable node: the node in the token of a request, empty for none. */ -}}
{{- define "manx.node" -}}
- name: node
  expression: "request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"
{{- end }}

{{- /* The variable metadata: that of the new and the old object. */ -}}
{{- define "manx.metadata" -}}
- name: metadata
  expression: "[dyn(object), dyn(oldObject)].filter(o, o != null).map(o, o.metadata)"
{{- end }}

{{- /* No owner and no finalizer: the first lets the garbage collector delete an object, the other keeps it. */ -}}
{{- define "manx.kept" -}}
- expression: |-
    object == null || ['ownerReferences', 'finalizers'].all(k, dyn(object).metadata[?k].orValue([]) ==
      (oldObject == null ? [] : dyn(oldObject).metadata[?k].orValue([])))
  messageExpression: "request.resource.resource + ' ' + request.name + ': ownerReferences and finalizers stay'"
  reason: Forbidden
{{- end }}

{{- define "manx.claim" -}}
- expression: variables.node != ''
  messageExpression: |-
    'the token of ' + request.userInfo.username + ' names no node: use that of a pod, or one of ' +
    'kubectl -n {{ .Release.Namespace }} create token manx-node --bound-object-kind Node --bound-object-name NODE'
  reason: Forbidden
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
{{- with include "manx.group" . }}
- name: CALICO_API_GROUP
  value: {{ . }}
{{- end }}
{{- end }}
- name: WAIT_FOR_DATASTORE
  value: "true"
{{ include "manx.places" . }}
- name: MANX_LOG_LEVEL
  value: {{ .Values.logLevel }}
{{- end }}

{{- /* Whether this release installs the CNI plugin calico: not beside the plugin of another network. */ -}}
{{- define "manx.plugin" -}}
{{ if not (and (eq .Values.networking "none") .Values.cni.foreignInterfaces) }}true{{ end }}
{{- end }}

{{- /* Further variables of the containers on the nodes. */ -}}
{{- define "manx.services" -}}
# How to reach the API without kube-proxy, as installations of Calico say it.
- configMapRef:
    name: kubernetes-services-endpoint
    optional: true
{{- end }}
