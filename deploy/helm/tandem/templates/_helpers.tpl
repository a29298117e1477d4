{{/* Names, labels, values. */}}

{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* What every object of this release has, and what selects its pods. Roles flip, so no selector names one. */}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride | trunc 63 }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: tandem
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* metadata of an object: (dict "root" $ "name" NAME "labels" {} "annotations" {}) */}}
{{- define "tandem.metadata" -}}
name: {{ .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "tandem.labels" .root | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (.annotations | default dict) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tandem.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "tandem.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* (dict "root" $ "image" OVERRIDES) */}}
{{- define "tandem.image" -}}
{{- $i := mergeOverwrite (deepCopy .root.Values.image) (deepCopy (.image | default dict)) -}}
{{- $repository := ternary (printf "%s/%s" $i.registry $i.repository) $i.repository (ne $i.registry "") -}}
{{- if $i.digest -}}
{{- printf "%s@%s" $repository $i.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository (default .root.Chart.AppVersion $i.tag) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.pullPolicy" -}}
{{- (.image | default dict).pullPolicy | default .root.Values.image.pullPolicy -}}
{{- end -}}

{{/* A number of a values file is a float: 268435456 must not become 2.68435456e+08. */}}
{{- define "tandem.scalar" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}
{{- int64 . -}}
{{- else -}}
{{- . -}}
{{- end -}}
{{- end -}}

{{- define "tandem.tlsSecretName" -}}
{{- default (printf "%s-tls" (include "tandem.fullname" .)) .Values.tls.existingSecret -}}
{{- end -}}

{{- define "tandem.adminTlsSecretName" -}}
{{- default (printf "%s-admin-tls" (include "tandem.fullname" .)) .Values.adminTls.existingSecret -}}
{{- end -}}

{{/* The name that the admin ports' certificate has. */}}
{{- define "tandem.adminName" -}}
{{- include "tandem.fullname" . }}-admin
{{- end -}}

{{/* Flags of a config map, in order of their names; a list repeats its flag. */}}
{{- define "tandem.flags" -}}
{{- range $flag := keys . | sortAlpha }}
{{- $value := index $ $flag }}
{{- if kindIs "slice" $value }}
{{- range $value }}
- {{ printf "--%s=%s" $flag (include "tandem.scalar" .) | quote }}
{{- end }}
{{- else if not (kindIs "invalid" $value) }}
- {{ printf "--%s=%s" $flag (include "tandem.scalar" $value) | quote }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tandem.clusterSecretName" -}}
{{- default (printf "%s-cluster" (include "tandem.fullname" .)) .Values.clusterSecret.existingSecret -}}
{{- end -}}

{{- define "tandem.authSecretName" -}}
{{- default (printf "%s-api-keys" (include "tandem.fullname" .)) .Values.auth.existingSecret -}}
{{- end -}}

{{/* JSON list of {role, name, v}: every pool of both roles with its effective values. */}}
{{- define "tandem.pools" -}}
{{- $out := list -}}
{{- range $role := list "prefill" "decode" "standalone" -}}
{{- $base := index $.Values $role -}}
{{- if and $base.enabled (eq $.Values.standalone.enabled (eq $role "standalone")) -}}
{{- if $base.pools -}}
{{- range $name := keys $base.pools | sortAlpha -}}
{{- $over := index $base.pools $name | default dict -}}
{{- $v := mergeOverwrite (deepCopy (omit $base "pools")) (deepCopy $over) -}}
{{- if $v.enabled -}}
{{- $out = append $out (dict "role" $role "name" (printf "%s-%s" $role $name) "v" $v) -}}
{{- end -}}
{{- end -}}
{{- else -}}
{{- $out = append $out (dict "role" $role "name" $role "v" (omit $base "pools")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{/* JSON list of all workloads: the pools and the router. */}}
{{- define "tandem.workloads" -}}
{{- $out := include "tandem.pools" . | fromJsonArray -}}
{{- if include "tandem.hasRouter" . -}}
{{- $out = append $out (dict "role" "router" "name" "router" "v" .Values.router) -}}
{{- end -}}
{{- toJson $out -}}
{{- end -}}

{{- define "tandem.hasRouter" -}}
{{- if and .Values.router.enabled (not .Values.standalone.enabled) }}true{{ end -}}
{{- end -}}

{{/* Who answers clients: component of the pods behind the clients' Service; empty when nobody does. */}}
{{- define "tandem.front" -}}
{{- if .Values.standalone.enabled }}standalone{{ else if .Values.router.enabled }}router{{ end -}}
{{- end -}}

{{/* A node may be a group of pods. Its leader is what everybody else calls the node; the others have a component of their
     own, so that no selector that means nodes finds them. */}}
{{- define "tandem.component" -}}
{{- if .rank }}rank{{ else if has .role (list "router" "standalone") }}{{ .role }}{{ else }}node{{ end -}}
{{- end -}}

{{/* Whether clients come to the pod. */}}
{{- define "tandem.hasApi" -}}
{{- if has (include "tandem.component" .) (list "router" "standalone") }}true{{ end -}}
{{- end -}}

{{/* Whether a node of the workload is more than one pod. */}}
{{- define "tandem.spans" -}}
{{- if and (ne .role "router") (gt (int (.v.leaderWorkerSet | default dict).size) 1) }}true{{ end -}}
{{- end -}}

{{/* Whether any pool's does. */}}
{{- define "tandem.hasGroups" -}}
{{- $found := "" -}}
{{- range include "tandem.pools" . | fromJsonArray }}{{ if include "tandem.spans" . }}{{ $found = "true" }}{{ end }}{{ end -}}
{{- $found -}}
{{- end -}}

{{/* Labels that tell a workload's pods: (dict "root" $ "w" WORKLOAD). component is router, node, standalone or rank. */}}
{{- define "tandem.podSelector" -}}
{{ include "tandem.selector" .root }}
app.kubernetes.io/component: {{ include "tandem.component" .w }}
tandem/pool: {{ .w.name }}
{{- end -}}

{{- define "tandem.workloadName" -}}
{{- printf "%s-%s" (include "tandem.fullname" .root) .w.name -}}
{{- end -}}

{{/* DNS name of a pool's headless Service. */}}
{{- define "tandem.poolHost" -}}
{{- $host := printf "%s.%s.svc" (include "tandem.workloadName" .) .root.Release.Namespace -}}
{{- if .root.Values.clusterDomain -}}
{{- $host = printf "%s.%s" $host .root.Values.clusterDomain -}}
{{- end -}}
{{- $host -}}
{{- end -}}

{{- define "tandem.device" -}}
{{- default .root.Values.kv.device .w.v.kv.device -}}
{{- end -}}

{{- define "tandem.transports" -}}
{{- $base := ternary "tcp" "rc" (eq .root.Values.kv.transport "tcp") -}}
{{- default (default $base .root.Values.kv.transports) .w.v.kv.transports -}}
{{- end -}}

{{- define "tandem.podIpInUrl" -}}
{{- ternary "[$(POD_IP)]" "$(POD_IP)" (eq .Values.ipFamily "IPv6") -}}
{{- end -}}
