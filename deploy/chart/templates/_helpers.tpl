{{- define "sluice.name" -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "sluice.labels" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "sluice.selector" -}}
app.kubernetes.io/name: sluice
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "sluice.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- define "sluice.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "sluice.name" .) }}
{{- else -}}
{{ .Values.serviceAccount.name | default "default" }}
{{- end -}}
{{- end -}}

{{/* A pipeline's name as part of an object's name: a name that is changed for it (case, _, length) gets a checksum, so that two pipelines never are one object. */}}
{{- define "sluice.runName" -}}
{{- $plain := .pipeline | replace "_" "-" | replace "." "-" | lower | trunc 40 | trimSuffix "-" -}}
{{- $base := include "sluice.name" .root | trunc 9 | trimSuffix "-" -}}
{{- $whole := printf "%s-run-%s" (include "sluice.name" .root) .pipeline -}}
{{- if and (eq $plain .pipeline) (le (len $whole) 63) -}}
{{ $whole }}
{{- else -}}
{{ printf "%s-run-%s-%s" $base $plain (sha256sum $whole | trunc 8) }}
{{- end -}}
{{- end -}}

{{/* The folders of files. Each has its name in the values, its variable and its mount below /etc/sluice. */}}
{{- define "sluice.folders" -}}
pipelines: SLUICE_PIPELINES
rules: SLUICE_RULES
channels: SLUICE_CHANNELS
targets: SLUICE_TARGETS
sources: SLUICE_SOURCES
formats: SLUICE_FORMATS
{{- end -}}

{{- define "sluice.filesChecksum" -}}
{{- $root := . -}}
{{- $texts := "" -}}
{{- range $folder, $variable := include "sluice.folders" . | fromYaml -}}
{{- $texts = printf "%s%s" $texts (toYaml (index $root.Values $folder)) -}}
{{- end -}}
{{- $texts | sha256sum -}}
{{- end -}}

{{/* What every pod has: the account, restrictions, where it may run. */}}
{{- define "sluice.pod" -}}
serviceAccountName: {{ include "sluice.serviceAccount" . }}
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 50000
  runAsGroup: 50000
  fsGroup: 50000
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What every container has: image, variables, folders. */}}
{{- define "sluice.container" -}}
image: {{ include "sluice.image" . }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
envFrom:
{{- range .Values.connectionSecrets }}
  - secretRef: {name: {{ . }}}
{{- end }}
env:
{{- range $folder, $variable := include "sluice.folders" . | fromYaml }}
  - {name: {{ $variable }}, value: /etc/sluice/{{ $folder }}}
{{- end }}
  - {name: HOME, value: /tmp}
  - {name: NUMBA_CACHE_DIR, value: /tmp/kernels}
{{- with .Values.store }}
  - {name: SLUICE_STORE, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "sluice.mounts" -}}
{{- range $folder, $variable := include "sluice.folders" . | fromYaml }}
- {name: {{ $folder }}, mountPath: /etc/sluice/{{ $folder }}, readOnly: true}
{{- end }}
- {name: tmp, mountPath: /tmp}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "sluice.volumes" -}}
{{- $root := . -}}
{{- range $folder, $variable := include "sluice.folders" . | fromYaml }}
{{- $texts := index $root.Values $folder }}
{{- $map := index $root.Values (printf "%sConfigMap" $folder) }}
{{- $volume := index $root.Values (printf "%sVolume" $folder) }}
{{- if gt (len (compact (list (ternary "x" "" (not (empty $texts))) $map (ternary "x" "" (not (empty $volume)))))) 1 }}
{{- fail (printf "%s: give one of %s, %sConfigMap and %sVolume" $folder $folder $folder $folder) }}
{{- end }}
- name: {{ $folder }}
{{- if $volume }}
{{ toYaml $volume | indent 2 }}
{{- else if or $texts $map }}
  configMap: {name: {{ $map | default (printf "%s-%s" (include "sluice.name" $root) $folder) }}}
{{- else }}
  emptyDir: {}
{{- end }}
{{- end }}
- name: tmp
  emptyDir: {}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The image's compiled kernels go to a folder that can be written: Numba uses no other, and compiling takes a minute. */}}
{{- define "sluice.kernels" -}}
initContainers:
  - name: kernels
    image: {{ include "sluice.image" . }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    command: [cp, --recursive, --no-target-directory, /var/cache/sluice, /tmp/kernels]
    resources:
      requests: {cpu: 50m, memory: 32Mi}
      limits: {memory: 64Mi}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "sluice.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: monitor}
  periodSeconds: 5
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: monitor}
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet: {path: /readyz, port: monitor}
  periodSeconds: 15
  timeoutSeconds: 12
{{- end -}}
