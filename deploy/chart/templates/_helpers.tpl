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

{{- define "sluice.pipelinesMap" -}}
{{ .Values.pipelinesConfigMap | default (printf "%s-pipelines" (include "sluice.name" .)) }}
{{- end -}}

{{- define "sluice.rulesMap" -}}
{{ .Values.rulesConfigMap | default (printf "%s-rules" (include "sluice.name" .)) }}
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
  - {name: SLUICE_PIPELINES, value: /etc/sluice/pipelines}
  - {name: SLUICE_RULES, value: /etc/sluice/rules}
  - {name: HOME, value: /tmp}
{{- with .Values.store }}
  - {name: SLUICE_STORE, value: {{ . | quote }}}
{{- end }}
{{- range $name, $value := .Values.env }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}

{{- define "sluice.mounts" -}}
- {name: pipelines, mountPath: /etc/sluice/pipelines, readOnly: true}
- {name: rules, mountPath: /etc/sluice/rules, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{- define "sluice.volumes" -}}
- name: pipelines
  configMap: {name: {{ include "sluice.pipelinesMap" . }}, optional: true}
- name: rules
  configMap: {name: {{ include "sluice.rulesMap" . }}, optional: true}
- name: tmp
  emptyDir: {}
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
