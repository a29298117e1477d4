{{/* The pod of every workload: (dict "root" $ "w" {role, name, v}). Routers and nodes differ in arguments, ports,
     devices and placement. */}}

{{- define "tandem.args.adminTls" -}}
{{- if .adminTls.enabled }}
- --admin-tls-cert=/etc/tandem/admin-tls/tls.crt
- --admin-tls-key=/etc/tandem/admin-tls/tls.key
{{- if eq .adminTls.mode "mutual" }}
- --admin-tls-client-ca=/etc/tandem/admin-ca/{{ .adminTls.clientCa.key }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.args.router" -}}
{{- $root := .root -}}
{{- $v := .w.v -}}
- --name=$(POD_NAME)
- --host=$(POD_IP)
- --port={{ $root.Values.ports.http }}
- --grpc={{ $v.grpc.enabled }}
{{- if $v.grpc.enabled }}
- --grpc-port={{ $root.Values.ports.grpc }}
{{- end }}
- --admin-host=$(POD_IP)
- --admin-port={{ $root.Values.ports.routerAdmin }}
{{- range include "tandem.pools" $root | fromJsonArray }}
- --node=tcp://{{ include "tandem.poolHost" (dict "root" $root "w" .) }}:{{ $root.Values.ports.control }}
{{- end }}
{{- with $root.Values.tracing }}
{{- if .enabled }}
- --trace-sample-ratio={{ .sampleRatio }}
{{- end }}
{{- end }}
{{- if $root.Values.tls.enabled }}
- --tls-cert=/etc/tandem/tls/tls.crt
- --tls-key=/etc/tandem/tls/tls.key
{{- if eq $root.Values.tls.mode "mutual" }}
- --tls-client-ca=/etc/tandem/client-ca/{{ $root.Values.tls.clientCa.key }}
{{- end }}
{{- end }}
{{- if $root.Values.auth.enabled }}
- --api-key-file=/etc/tandem/auth/{{ $root.Values.auth.key }}
{{- end }}
{{- if $root.Values.model.chatTemplate }}
- --chat-template=/etc/tandem/template/chat.jinja
{{- end }}
{{- end -}}

{{- define "tandem.args.kv" -}}
- --kv-device={{ include "tandem.device" . }}
- --kv-transports={{ include "tandem.transports" . }}
{{- if eq .root.Values.kv.transport "tcp" }}
- --kv-port-range={{ .root.Values.kv.firstPort }}-{{ .root.Values.kv.lastPort }}
- --kv-trust-network=true
{{- end }}
{{- end -}}

{{- define "tandem.args.node" -}}
{{- $root := .root -}}
- --role={{ .w.role }}
- --name=$(POD_NAME)
- --listen=tcp://{{ include "tandem.podIpInUrl" $root }}:{{ $root.Values.ports.control }}
- --admin-host=$(POD_IP)
- --admin-port={{ $root.Values.ports.nodeAdmin }}
{{ include "tandem.args.kv" . }}
{{- end -}}

{{/* A pod of a group that is not its leader: it holds its part of the model and of the KV heads, and follows. Whatever
     computes must be told the same as the leader, its role included. */}}
{{- define "tandem.args.rank" -}}
- --role={{ ternary "both" .w.role (eq .w.role "standalone") }}
- --name=$(POD_NAME)
- --admin-host=$(POD_IP)
- --admin-port={{ .root.Values.ports.nodeAdmin }}
{{ include "tandem.args.kv" . }}
{{- end -}}

{{/* What makes a group's pods one node. The controller puts LWS_LEADER_ADDRESS and LWS_WORKER_INDEX (0.6 and later) before
     the container's own variables. */}}
{{- define "tandem.args.group" -}}
{{- $port := .root.Values.ports.ranks -}}
- --tensor-parallel-size={{ .w.v.leaderWorkerSet.size }}
{{- if .w.rank }}
- --rank=$(LWS_WORKER_INDEX)
- --rank-leader=$(LWS_LEADER_ADDRESS):{{ $port }}
{{- else }}
- --rank=0
- --rank-listen={{ include "tandem.podIpInUrl" .root }}:{{ $port }}
{{- end }}
{{- end -}}

{{/* From SIGTERM to the cut of what still runs; the last 10 s are for parting words. */}}
{{- define "tandem.drainSeconds" -}}
{{- sub (sub (int .terminationGracePeriodSeconds) (int .preStopSeconds)) 10 -}}
{{- end -}}

{{/* A node with the API in front: two admin ports, its own and the front's. */}}
{{- define "tandem.args.standalone" -}}
{{- $root := .root -}}
- --role=both
- --name=$(POD_NAME)
- --host=$(POD_IP)
- --port={{ $root.Values.ports.http }}
- --grpc={{ $root.Values.router.grpc.enabled }}
{{- if $root.Values.router.grpc.enabled }}
- --grpc-port={{ $root.Values.ports.grpc }}
{{- end }}
- --admin-host=$(POD_IP)
- --admin-port={{ $root.Values.ports.nodeAdmin }}
- --router-admin-host=$(POD_IP)
- --router-admin-port={{ $root.Values.ports.routerAdmin }}
{{- if include "tandem.spans" .w }}
{{ include "tandem.args.kv" . }}
{{- end }}
{{- if $root.Values.tracing.enabled }}
- --trace-sample-ratio={{ $root.Values.tracing.sampleRatio }}
{{- end }}
{{- if $root.Values.auth.enabled }}
- --api-key-file=/etc/tandem/auth/{{ $root.Values.auth.key }}
{{- end }}
{{- if $root.Values.model.chatTemplate }}
- --chat-template=/etc/tandem/template/chat.jinja
{{- end }}
{{- end -}}

{{- define "tandem.usesGpu" -}}
{{- if and (ne .role "router") (or (gt (int .v.gpu.count) 0) .v.gpu.dra.enabled) }}true{{ end -}}
{{- end -}}

{{- define "tandem.program" -}}
{{- if eq .role "standalone" }}tandem-decode{{ else }}tandem-{{ .role }}{{ end -}}
{{- end -}}

{{- define "tandem.args" -}}
{{- $values := .root.Values -}}
- --model={{ $values.model.mountPath }}/{{ $values.model.path }}
{{- range $values.model.names }}
- {{ printf "--served-model-name=%s" . | quote }}
{{- end }}
- --cluster-key-file=/etc/tandem/cluster/{{ $values.clusterSecret.key }}
{{ include (printf "tandem.args.%s" (include "tandem.component" .w)) . }}
{{- if include "tandem.spans" .w }}
{{ include "tandem.args.group" . }}
{{- end }}
{{- if include "tandem.usesGpu" .w }}
- --backend=cuda
{{- end }}
{{- include "tandem.args.adminTls" $values }}
{{- if and $values.tracing.enabled (not .w.rank) }}
- --otlp-endpoint={{ $values.tracing.endpoint }}
{{- end }}
- --drain-timeout={{ include "tandem.drainSeconds" .w.v }}
- --log-level={{ $values.log.level }}
- --log-format={{ $values.log.format }}
{{- include "tandem.flags" .w.v.config }}
{{- end -}}

{{/* For tandemctl in a router's pod: its router. For a node: one compute thread for each CPU that the pod may use, since
     inside a container the program would count the host's. */}}
{{- define "tandem.env" -}}
{{- $v := .w.v -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_IP
  valueFrom: {fieldRef: {fieldPath: status.podIP}}
{{- if include "tandem.hasApi" .w }}
- name: TANDEM_ROUTER
  value: {{ ternary "https" "http" .root.Values.adminTls.enabled }}://{{ include "tandem.podIpInUrl" .root }}:{{ .root.Values.ports.routerAdmin }}
{{- if .root.Values.adminTls.enabled }}
- name: TANDEM_TLS_CA
  value: /etc/tandem/admin-tls/ca.crt
- name: TANDEM_TLS_SERVER_NAME
  value: {{ include "tandem.adminName" .root }}
{{- end }}
{{- end }}
{{- if ne .w.role "router" }}
{{- if not (hasKey $v.config "threads") }}
{{- $requests := (($v.resources | default dict).requests | default dict) }}
{{- $limits := (($v.resources | default dict).limits | default dict) }}
{{- if or (hasKey $limits "cpu") (hasKey $requests "cpu") }}
- name: TANDEM_THREADS
  valueFrom: {resourceFieldRef: {containerName: tandem, resource: {{ ternary "limits.cpu" "requests.cpu" (hasKey $limits "cpu") }}}}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandem.resources" -}}
{{- $r := deepCopy (.w.v.resources | default dict) -}}
{{- if ne .w.role "router" -}}
{{- $devices := dict -}}
{{- if gt (int .w.v.gpu.count) 0 }}{{ $_ := set $devices .w.v.gpu.resourceName (toString (int .w.v.gpu.count)) }}{{ end -}}
{{- if .w.v.rdma.enabled }}{{ $_ := set $devices .w.v.rdma.resourceName (toString (int .w.v.rdma.count)) }}{{ end -}}
{{- if $devices -}}
{{- $_ := set $r "requests" (merge (dict) $devices ($r.requests | default dict)) -}}
{{- $_ := set $r "limits" (merge (dict) $devices ($r.limits | default dict)) -}}
{{- end -}}
{{- if .w.v.gpu.dra.enabled }}{{ $_ := set $r "claims" (list (dict "name" "gpu")) }}{{ end -}}
{{- end -}}
{{- toYaml $r -}}
{{- end -}}

{{/* CPU nodes start before they stop; a GPU that nobody has spare cannot. */}}
{{- define "tandem.strategy" -}}
{{- if .w.v.strategy -}}
{{- toYaml .w.v.strategy -}}
{{- else -}}
{{- $scarce := eq (include "tandem.usesGpu" .w) "true" -}}
type: RollingUpdate
rollingUpdate:
  maxSurge: {{ ternary 0 1 $scarce }}
  maxUnavailable: {{ ternary 1 0 $scarce }}
{{- end -}}
{{- end -}}

{{- define "tandem.podSecurity" -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $default (deepCopy (.podSecurityContext | default dict))) -}}
{{- end -}}

{{/* (dict "w" WORKLOAD) */}}
{{- define "tandem.containerSecurity" -}}
{{- $capabilities := dict "drop" (list "ALL") -}}
{{- $rdma := .w.v.rdma | default dict -}}
{{- if and $rdma.enabled $rdma.ipcLock }}{{ $_ := set $capabilities "add" (list "IPC_LOCK") }}{{ end -}}
{{- $default := dict "runAsNonRoot" true "readOnlyRootFilesystem" true "allowPrivilegeEscalation" false "privileged" false "capabilities" $capabilities "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $default (deepCopy (.w.v.securityContext | default dict))) -}}
{{- end -}}

{{- define "tandem.probe" -}}
httpGet: {path: {{ .path }}, port: {{ .port | default "admin" }}{{ if .tls }}, scheme: HTTPS{{ end }}}
{{ toYaml .timing }}
{{- end -}}

{{- define "tandem.mounts" -}}
{{- $values := .root.Values -}}
- {name: model, mountPath: {{ $values.model.mountPath }}, readOnly: true}
- {name: cluster, mountPath: /etc/tandem/cluster, readOnly: true}
{{- if include "tandem.hasApi" .w }}
{{- if $values.tls.enabled }}
- {name: tls, mountPath: /etc/tandem/tls, readOnly: true}
{{- if eq $values.tls.mode "mutual" }}
- {name: client-ca, mountPath: /etc/tandem/client-ca, readOnly: true}
{{- end }}
{{- end }}
{{- if $values.auth.enabled }}
- {name: auth, mountPath: /etc/tandem/auth, readOnly: true}
{{- end }}
{{- if $values.model.chatTemplate }}
- {name: template, mountPath: /etc/tandem/template, readOnly: true}
{{- end }}
{{- end }}
{{- if $values.adminTls.enabled }}
- {name: admin-tls, mountPath: /etc/tandem/admin-tls, readOnly: true}
{{- if eq $values.adminTls.mode "mutual" }}
- {name: admin-ca, mountPath: /etc/tandem/admin-ca, readOnly: true}
{{- end }}
{{- end }}
{{- if ne .w.role "router" }}
- {name: shm, mountPath: /dev/shm}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- with .w.v.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandem.volumes" -}}
{{- $values := .root.Values -}}
- name: model
  {{- include "tandem.modelVolume" .root | nindent 2 }}
- name: cluster
  secret: {secretName: {{ include "tandem.clusterSecretName" .root }}, defaultMode: 0440}
{{- if include "tandem.hasApi" .w }}
{{- if $values.tls.enabled }}
- name: tls
  secret: {secretName: {{ include "tandem.tlsSecretName" .root }}, defaultMode: 0440}
{{- if eq $values.tls.mode "mutual" }}
- name: client-ca
  secret: {secretName: {{ default (include "tandem.tlsSecretName" .root) $values.tls.clientCa.secret }}, defaultMode: 0440, items: [{key: {{ $values.tls.clientCa.key }}, path: {{ $values.tls.clientCa.key }}}]}
{{- end }}
{{- end }}
{{- if $values.auth.enabled }}
- name: auth
  secret: {secretName: {{ include "tandem.authSecretName" .root }}, defaultMode: 0440}
{{- end }}
{{- if $values.model.chatTemplate }}
- name: template
  configMap: {name: {{ include "tandem.fullname" .root }}-template}
{{- end }}
{{- end }}
{{- if $values.adminTls.enabled }}
- name: admin-tls
  secret: {secretName: {{ include "tandem.adminTlsSecretName" .root }}, defaultMode: 0440}
{{- if eq $values.adminTls.mode "mutual" }}
- name: admin-ca
  secret: {secretName: {{ default (include "tandem.adminTlsSecretName" .root) $values.adminTls.clientCa.secret }}, defaultMode: 0440, items: [{key: {{ $values.adminTls.clientCa.key }}, path: {{ $values.adminTls.clientCa.key }}}]}
{{- end }}
{{- end }}
{{- if ne .w.role "router" }}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .w.v.shm.sizeLimit }}}
{{- end }}
- name: tmp
  emptyDir: {sizeLimit: 64Mi}
{{- with $values.model.fetch }}
{{- if .uri }}
- name: fetch
  configMap: {name: {{ include "tandem.fullname" $.root }}-fetch}
{{- if .tokenSecret.name }}
- name: fetch-token
  secret: {secretName: {{ .tokenSecret.name }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- end }}
{{- with .w.v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "tandem.container" -}}
{{- $w := .w -}}
{{- $component := include "tandem.component" $w -}}
{{- $ports := .root.Values.ports -}}
name: tandem
image: {{ include "tandem.image" (dict "root" .root "image" $w.v.image) }}
imagePullPolicy: {{ include "tandem.pullPolicy" (dict "root" .root "image" $w.v.image) }}
command: [{{ include "tandem.program" $w }}]
args:
  {{- include "tandem.args" . | nindent 2 }}
env:
  {{- include "tandem.env" . | nindent 2 }}
ports:
{{- if eq $component "router" }}
  - {name: http, containerPort: {{ $ports.http }}, protocol: TCP}
  {{- if $w.v.grpc.enabled }}
  - {name: grpc, containerPort: {{ $ports.grpc }}, protocol: TCP}
  {{- end }}
  - {name: admin, containerPort: {{ $ports.routerAdmin }}, protocol: TCP}
{{- else if eq $component "standalone" }}
  - {name: http, containerPort: {{ $ports.http }}, protocol: TCP}
  {{- if .root.Values.router.grpc.enabled }}
  - {name: grpc, containerPort: {{ $ports.grpc }}, protocol: TCP}
  {{- end }}
  - {name: front, containerPort: {{ $ports.routerAdmin }}, protocol: TCP}
  - {name: admin, containerPort: {{ $ports.nodeAdmin }}, protocol: TCP}
{{- else }}
  - {name: admin, containerPort: {{ $ports.nodeAdmin }}, protocol: TCP}
  {{- if eq $component "node" }}
  - {name: ctrl, containerPort: {{ $ports.control }}, protocol: TCP}
  {{- end }}
{{- end }}
{{- if and (include "tandem.spans" $w) (not $w.rank) }}
  - {name: ranks, containerPort: {{ $ports.ranks }}, protocol: TCP}
{{- end }}
startupProbe:
  {{- include "tandem.probe" (dict "tls" .root.Values.adminTls.enabled "path" "/startupz" "timing" $w.v.probes.startup) | nindent 2 }}
readinessProbe:
  {{- include "tandem.probe" (dict "tls" .root.Values.adminTls.enabled "path" "/readyz" "port" (ternary "front" "admin" (eq $component "standalone")) "timing" $w.v.probes.readiness) | nindent 2 }}
livenessProbe:
  {{- include "tandem.probe" (dict "tls" .root.Values.adminTls.enabled "path" "/livez" "timing" $w.v.probes.liveness) | nindent 2 }}
{{- if gt (int $w.v.preStopSeconds) 0 }}
lifecycle:
  preStop: {exec: {command: [sleep, {{ $w.v.preStopSeconds | quote }}]}}
{{- end }}
securityContext:
  {{- include "tandem.containerSecurity" (dict "w" $w) | nindent 2 }}
resources:
  {{- include "tandem.resources" . | nindent 2 }}
volumeMounts:
  {{- include "tandem.mounts" . | nindent 2 }}
{{- end -}}

{{/* P and D near each other (pairing), pods of one pool on different hosts (spread). */}}
{{- define "tandem.affinity" -}}
{{- $a := deepCopy (.w.v.affinity | default dict) -}}
{{- $pairing := .w.v.pairing | default (dict "mode" "none") -}}
{{- if and (ne $pairing.mode "none") (ne .w.role "standalone") -}}
{{- $term := dict "topologyKey" $pairing.topologyKey "labelSelector" (dict "matchLabels" (merge (dict "app.kubernetes.io/component" "node") (include "tandem.selector" .root | fromYaml))) -}}
{{- $pod := $a.podAffinity | default dict -}}
{{- if eq $pairing.mode "required" -}}
{{- $_ := set $pod "requiredDuringSchedulingIgnoredDuringExecution" (append ($pod.requiredDuringSchedulingIgnoredDuringExecution | default list) $term) -}}
{{- else -}}
{{- $_ := set $pod "preferredDuringSchedulingIgnoredDuringExecution" (append ($pod.preferredDuringSchedulingIgnoredDuringExecution | default list) (dict "weight" 50 "podAffinityTerm" $term)) -}}
{{- end -}}
{{- $_ := set $a "podAffinity" $pod -}}
{{- end -}}
{{- if $a }}{{ toYaml $a }}{{ end -}}
{{- end -}}

{{- define "tandem.podSpec" -}}
{{- $root := .root -}}
{{- $v := .w.v -}}
serviceAccountName: {{ include "tandem.serviceAccountName" $root }}
automountServiceAccountToken: false
enableServiceLinks: false
terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
securityContext:
  {{- include "tandem.podSecurity" $v | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $v.hostNetwork }}
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
{{- end }}
{{- $init := include "tandem.modelInit" . }}
{{- if or $init $v.initContainers $v.sidecars }}
initContainers:
  {{- with $init }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $v.initContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
  {{- range $v.sidecars }}
  - {{ toYaml (merge (dict "restartPolicy" "Always") .) | nindent 4 | trim }}
  {{- end }}
{{- end }}
containers:
  - {{ include "tandem.container" . | nindent 4 | trim }}
volumes:
  {{- include "tandem.volumes" . | nindent 2 }}
{{- if and (ne .w.role "router") $v.gpu.dra.enabled }}
resourceClaims:
  - name: gpu
    resourceClaimTemplateName: {{ include "tandem.workloadName" . }}
{{- end }}
{{- /* Nodes are spread, so of a group its leader; where the others go, exclusiveTopology and their resources say. */}}
{{- $spread := and $v.spread.topologyKey (not .w.rank) }}
{{- if or $spread $v.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- if $spread }}
  - maxSkew: 1
    topologyKey: {{ $v.spread.topologyKey }}
    whenUnsatisfiable: {{ $v.spread.whenUnsatisfiable }}
    labelSelector:
      matchLabels:
        {{- include "tandem.podSelector" . | nindent 8 }}
  {{- end }}
  {{- with $v.topologySpreadConstraints }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with include "tandem.affinity" . }}
affinity:
  {{- . | nindent 2 }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $key := list "priorityClassName" "runtimeClassName" "schedulerName" }}
{{- with index $v $key }}
{{ $key }}: {{ . }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.podTemplate" -}}
metadata:
  labels:
    {{- include "tandem.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ include "tandem.component" .w }}
    tandem/pool: {{ .w.name }}
    tandem/starts-as: {{ .w.role }}
    {{- with .w.v.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    kubectl.kubernetes.io/default-container: tandem
    {{- /* The generated keys differ at every render, their names do not: a rotation restarts the pods, an upgrade does not. */}}
    tandem/cluster-keys: {{ join "." .root.Values.clusterSecret.keyIds }}
    {{- if include "tandem.hasApi" .w }}
    tandem/config: {{ toJson (list .root.Values.auth.keys .root.Values.model.chatTemplate) | sha256sum | trunc 16 | quote }}
    {{- end }}
    {{- with merge (dict) .w.v.podAnnotations .root.Values.commonAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  {{- include "tandem.podSpec" . | nindent 2 }}
{{- end -}}
