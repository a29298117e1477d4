{{/* What a schema cannot say. One line each; the message names the value and the remedy. */}}
{{- define "tandem.validate" -}}
{{- $v := .Values -}}
{{- $pools := include "tandem.pools" . | fromJsonArray -}}
{{- $sources := list -}}
{{- if $v.model.volume }}{{ $sources = append $sources "model.volume" }}{{ end -}}
{{- if $v.model.image.reference }}{{ $sources = append $sources "model.image.reference" }}{{ end -}}
{{- if $v.model.fetch.uri }}{{ $sources = append $sources "model.fetch.uri" }}{{ end -}}
{{- if ne (len $sources) 1 -}}
{{- fail (printf "model: name exactly one source: model.volume, model.image.reference or model.fetch.uri (now: %s)" (ternary "none" (join ", " $sources) (empty $sources))) -}}
{{- end -}}
{{- $full := include "tandem.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $full) -}}
{{- fail (printf "fullnameOverride: Services would be named %s; name it with a letter first, then lower-case letters, digits and dashes" $full) -}}
{{- end -}}
{{- if not $v.model.path }}{{ fail "model.path: name the model's file or folder inside the source, for example model.gguf" }}{{ end -}}
{{- if and $v.model.fetch.uri (empty $v.model.fetch.files) }}{{ fail "model.fetch.files: name each file with its sha256" }}{{ end -}}
{{- $roles := dict -}}
{{- range $pools }}{{ $_ := set $roles .role true }}{{ end -}}
{{- $groups := include "tandem.hasGroups" . -}}
{{- if and $v.standalone.enabled (or $v.tls.enabled (and (ne $v.kv.transport "tcp") (not $groups))) -}}
{{- fail "standalone.enabled: nodes that serve alone have no TLS of their own and move no KV; put TLS in front (router.ingress) and leave kv.transport alone" -}}
{{- end -}}
{{- range ternary (list "standalone") (list "prefill" "decode") $v.standalone.enabled -}}
{{- if not (hasKey $roles .) }}{{ fail (printf "%s: no pool is enabled; a router needs at least one prefill pool and one decode pool" .) }}{{ end -}}
{{- end -}}
{{- if gt (len $pools) 16 }}{{ fail "prefill.pools, decode.pools: a router follows at most 16 pools" }}{{ end -}}
{{- if and (eq $v.kv.transport "tcp") (not $v.networkPolicy.enabled) (or $groups (not $v.standalone.enabled)) -}}
{{- fail "kv.transport=tcp needs networkPolicy.enabled=true: whoever reaches a UCX TCP port can write the node's memory (docs/threat-model.md). Keep the policy, or use kv.transport=rdma" -}}
{{- end -}}
{{- if gt (int $v.kv.firstPort) (int $v.kv.lastPort) }}{{ fail "kv.firstPort: must not be above kv.lastPort" }}{{ end -}}
{{- if and $v.auth.enabled (not $v.auth.existingSecret) (empty $v.auth.keys) -}}
{{- fail "auth: name auth.existingSecret, or list auth.keys" -}}
{{- end -}}
{{- if and $v.tls.enabled (not $v.tls.existingSecret) (not $v.tls.certManager.enabled) -}}
{{- fail "tls: name tls.existingSecret (tls.crt, tls.key), or enable tls.certManager" -}}
{{- end -}}
{{- if and $v.adminTls.enabled (not $v.adminTls.existingSecret) (not $v.adminTls.certManager.enabled) -}}
{{- fail "adminTls: name adminTls.existingSecret (tls.crt, tls.key, ca.crt), or enable adminTls.certManager" -}}
{{- end -}}
{{- if and $v.adminTls.certManager.enabled (empty $v.adminTls.certManager.issuerRef) }}{{ fail "adminTls.certManager.issuerRef: name the issuer" }}{{ end -}}
{{- if and $v.adminTls.enabled (eq $v.adminTls.mode "mutual") (or $v.monitoring.serviceMonitor.enabled $v.monitoring.podMonitor.enabled) (empty $v.monitoring.tlsConfig) -}}
{{- fail "monitoring.tlsConfig: adminTls.mode=mutual asks Prometheus for a certificate; name it here (ca, cert, keySecret, serverName)" -}}
{{- end -}}
{{- if and $v.tls.certManager.enabled (empty $v.tls.certManager.issuerRef) }}{{ fail "tls.certManager.issuerRef: name the issuer" }}{{ end -}}
{{- if and $v.tracing.enabled (empty $v.tracing.endpoint) }}{{ fail "tracing.endpoint: name the collector, for example http://otel-collector.monitoring:4318" }}{{ end -}}
{{- range include "tandem.workloads" . | fromJsonArray -}}
{{- include "tandem.validateWorkload" (dict "root" $ "w" .) -}}
{{- end -}}
{{- range $pools -}}
{{- include "tandem.validatePool" (dict "root" $ "w" .) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.validateWorkload" -}}
{{- $w := .w -}}
{{- $v := .w.v -}}
{{- if gt (len (include "tandem.workloadName" .)) 52 }}{{ fail (printf "%s: the name %s is longer than 52 characters; shorten fullnameOverride or the pool's name" $w.name (include "tandem.workloadName" .)) }}{{ end -}}
{{- if lt (include "tandem.drainSeconds" $v | int) 5 -}}
{{- fail (printf "%s.terminationGracePeriodSeconds: must be at least 15 above preStopSeconds, so that streams can end" $w.name) -}}
{{- end -}}
{{- if and $v.pdb.enabled (not (kindIs "invalid" $v.pdb.minAvailable)) -}}
{{- $least := ternary $v.autoscaling.minReplicas $v.replicas $v.autoscaling.enabled -}}
{{- if and (not (kindIs "string" $v.pdb.minAvailable)) (ge (int $v.pdb.minAvailable) (int $least)) -}}
{{- fail (printf "%s.pdb.minAvailable: %d of %d replicas would never let a node be drained" $w.name (int $v.pdb.minAvailable) (int $least)) -}}
{{- end -}}
{{- end -}}
{{- if $v.autoscaling.enabled -}}
{{- if gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas) }}{{ fail (printf "%s.autoscaling.minReplicas: must not be above maxReplicas" $w.name) }}{{ end -}}
{{- if and (eq (int $v.autoscaling.cpuUtilization) 0) (empty $v.autoscaling.metrics) }}{{ fail (printf "%s.autoscaling: name cpuUtilization or metrics" $w.name) }}{{ end -}}
{{- end -}}
{{- $types := index (dict "Deployment" (list "RollingUpdate" "Recreate") "StatefulSet" (list "RollingUpdate" "OnDelete") "LeaderWorkerSet" (list "RollingUpdate")) $v.kind -}}
{{- with $v.strategy.type -}}
{{- if not (has . $types) }}{{ fail (printf "%s.strategy.type: a %s has %s, not %s" $w.name $v.kind (join " and " $types) .) }}{{ end -}}
{{- end -}}
{{- if and (eq $w.role "router") (ne $v.kind "Deployment") }}{{ fail "router.kind: a router has no identity to keep; only Deployment" }}{{ end -}}
{{- end -}}

{{- define "tandem.validatePool" -}}
{{- $w := .w -}}
{{- $v := .w.v -}}
{{- if hasKey $v "pools" }}{{ fail (printf "%s.pools: pools do not nest" $w.name) }}{{ end -}}
{{- $tls := include "tandem.transports" . -}}
{{- if and (eq .root.Values.kv.transport "rdma") (not $v.rdma.enabled) -}}
{{- fail (printf "%s.rdma.enabled: kv.transport=rdma needs it in every pool" $w.name) -}}
{{- end -}}
{{- if and (eq .root.Values.kv.transport "rdma") (or (hasPrefix "^" $tls) (has "tcp" (splitList "," $tls)) (has "all" (splitList "," $tls))) -}}
{{- fail (printf "%s.kv.transports: %q would let UCX fall back to TCP under kv.transport=rdma; list transports without tcp" $w.name $tls) -}}
{{- end -}}
{{- if and (eq .root.Values.kv.transport "rdma") (or (eq (include "tandem.device" .) "eth0") (eq (include "tandem.device" .) "all")) -}}
{{- fail (printf "%s: kv.device: kv.transport=rdma needs the name of an RDMA device, for example mlx5_0:1" $w.name) -}}
{{- end -}}
{{- if and (eq .root.Values.kv.transport "tcp") (has (include "tandem.device" .) (list "lo" "all")) -}}
{{- fail (printf "%s: kv.device: pods meet over one named network device, for example eth0" $w.name) -}}
{{- end -}}
{{- if and $v.hostNetwork (eq .root.Values.kv.transport "tcp") -}}
{{- fail (printf "%s.hostNetwork: a NetworkPolicy does not cover the host's network, so kv.transport=tcp is refused with it" $w.name) -}}
{{- end -}}
{{- if and (ne $v.kind "LeaderWorkerSet") (or (gt (int $v.leaderWorkerSet.size) 1) $v.leaderWorkerSet.exclusiveTopology) -}}
{{- fail (printf "%s.leaderWorkerSet: only for kind LeaderWorkerSet; a %s has no groups" $w.name $v.kind) -}}
{{- end -}}
{{- if include "tandem.spans" $w }}{{ include "tandem.validateGroup" . }}{{ end -}}
{{- if gt (int $v.gpu.count) 1 }}{{ fail (printf "%s.gpu.count: this version's engine uses one GPU, so a pod asks for 1; raise replicas" $w.name) }}{{ end -}}
{{- if and $v.gpu.dra.enabled (gt (int $v.gpu.count) 0) }}{{ fail (printf "%s.gpu: count and dra.enabled exclude each other" $w.name) }}{{ end -}}
{{- end -}}

{{/* A pool whose nodes are groups of pods. */}}
{{- define "tandem.validateGroup" -}}
{{- $w := .w -}}
{{- $v := .w.v -}}
{{- if include "tandem.usesGpu" $w -}}
{{- fail (printf "%s.leaderWorkerSet.size: this version's CUDA engine has no ranks, so a GPU node is 1 pod; groups compute on processors" $w.name) -}}
{{- end -}}
{{- /* The controller names a group's StatefulSet after its leader, and its revision must fit a label: 63 = 48 + "-999" + "-" + 10. */}}
{{- if gt (len (include "tandem.workloadName" .)) 48 }}{{ fail (printf "%s: the name %s is longer than the 48 characters of a set with groups; shorten fullnameOverride or the pool's name" $w.name (include "tandem.workloadName" .)) }}{{ end -}}
{{- /* A budget counts pods, but one evicted pod takes its group along: N pods that may go could belong to N groups. */}}
{{- if and $v.pdb.enabled (or (not (kindIs "invalid" $v.pdb.minAvailable)) (kindIs "string" $v.pdb.maxUnavailable)) -}}
{{- fail (printf "%s.pdb: of groups only maxUnavailable as a number has a meaning: how many of them may be away at once" $w.name) -}}
{{- end -}}
{{- $startup := mul (int $v.probes.startup.periodSeconds) (int $v.probes.startup.failureThreshold) -}}
{{- $join := int (get $v.config "rank-join-timeout" | default 600) -}}
{{- if lt (int $startup) $join -}}
{{- fail (printf "%s.probes.startup: periodSeconds times failureThreshold is %d s, but a group may take %d s to join (config.rank-join-timeout)" $w.name (int $startup) $join) -}}
{{- end -}}
{{- end -}}
