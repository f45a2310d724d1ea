{{- define "lakebed.name" -}}
{{ printf "%s-lakebed" .Release.Name | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- define "lakebed.selector" -}}
app.kubernetes.io/name: lakebed
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "lakebed.labels" -}}
{{ include "lakebed.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}
{{- define "lakebed.secret" -}}
{{ .Values.secret.existing | default (include "lakebed.name" .) }}
{{- end }}
