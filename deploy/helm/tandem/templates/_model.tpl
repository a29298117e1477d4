{{/* Where the model comes from. */}}

{{- define "tandem.modelVolume" -}}
{{- $m := .Values.model -}}
{{- if $m.volume -}}
{{- toYaml $m.volume -}}
{{- else if $m.image.reference -}}
image: {reference: {{ $m.image.reference }}, pullPolicy: {{ $m.image.pullPolicy }}}
{{- else -}}
{{- toYaml (default (dict "emptyDir" (dict)) $m.fetch.storage) -}}
{{- end -}}
{{- end -}}

{{/* "name sha256 url" for each file. hf://owner/name[@revision] is Hugging Face's address of a repository. */}}
{{- define "tandem.fetchList" -}}
{{- $fetch := .Values.model.fetch -}}
{{- $base := $fetch.uri | trimSuffix "/" -}}
{{- if hasPrefix "hf://" $base -}}
{{- $parts := splitList "@" (trimPrefix "hf://" $base) -}}
{{- $base = printf "https://huggingface.co/%s/resolve/%s" (index $parts 0) (ternary (last $parts) "main" (gt (len $parts) 1)) -}}
{{- end -}}
{{- range $fetch.files }}
{{ .name }} {{ .sha256 }} {{ $base }}/{{ .name }}
{{- end }}
{{- end -}}

{{- define "tandem.modelInit" -}}
{{- $fetch := .root.Values.model.fetch -}}
{{- if $fetch.uri -}}
- name: fetch-model
  image: {{ include "tandem.image" (dict "root" .root "image" .w.v.image) }}
  imagePullPolicy: {{ include "tandem.pullPolicy" (dict "root" .root "image" .w.v.image) }}
  command: [/bin/sh, /etc/tandem/fetch/fetch.sh]
  env:
    - name: MODEL_DIR
      value: {{ .root.Values.model.mountPath }}
    - name: FETCH_LIST
      value: /etc/tandem/fetch/list
    {{- if $fetch.tokenSecret.name }}
    - name: FETCH_TOKEN_FILE
      value: /etc/tandem/token/{{ $fetch.tokenSecret.key }}
    {{- end }}
  securityContext:
    {{- include "tandem.containerSecurity" (dict "w" (dict "v" dict)) | nindent 4 }}
  resources:
    {{- toYaml $fetch.resources | nindent 4 }}
  volumeMounts:
    - {name: model, mountPath: {{ .root.Values.model.mountPath }}}
    - {name: fetch, mountPath: /etc/tandem/fetch, readOnly: true}
    {{- if $fetch.tokenSecret.name }}
    - {name: fetch-token, mountPath: /etc/tandem/token, readOnly: true}
    {{- end }}
    - {name: tmp, mountPath: /tmp}
{{- end -}}
{{- end -}}
