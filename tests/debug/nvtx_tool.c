/* A profiler, made up: what NVTX loads by NVTX_INJECTION64_PATH. It writes each range's begin and end as a line to the
 * file that NVTX_TOOL_OUT names: "+ DOMAIN THREAD NAME BYTES", "- DOMAIN THREAD". */
#define _GNU_SOURCE
#define NVTX_NO_IMPL
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE* out;

/* The handle of a domain is its name. */
static nvtxDomainHandle_t create_domain(const char* name) {
  return (nvtxDomainHandle_t)(void*)strdup(name);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  const int is_sound = range->version == NVTX_VERSION && range->size == NVTX_EVENT_ATTRIB_STRUCT_SIZE &&
                       range->messageType == NVTX_MESSAGE_TYPE_ASCII &&
                       range->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  fprintf(out, "+ %s %d %s %llu\n", (const char*)(void*)domain, gettid(), is_sound ? range->message.ascii : "unsound",
          (unsigned long long)range->payload.ullValue);
  fflush(out);
  return 0;
}

static int pop(nvtxDomainHandle_t domain) {
  fprintf(out, "- %s %d\n", (const char*)(void*)domain, gettid());
  fflush(out);
  return 0;
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t tables) {
  const NvtxExportTableCallbacks* const callbacks = (const NvtxExportTableCallbacks*)tables(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  out = fopen(getenv("NVTX_TOOL_OUT"), "w");
  if (out == NULL || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
