/* A shared object whose table is none, in the way that BAD_PLUGIN says. Nobody may call what is in it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tutti/transport.h"

const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes);
const tuttiTransport* tuttiTransportPlugin(char* why, size_t why_bytes) {
  static tuttiTransport table;
  const char* how = getenv("BAD_PLUGIN");
  memset(&table, 1, sizeof table);
  table.abi_version = TUTTI_TRANSPORT_ABI_VERSION;
  table.struct_bytes = sizeof table;
  table.name = "bad";
  if (strcmp(how, "older") == 0) table.abi_version--;
  if (strcmp(how, "newer") == 0) table.abi_version++;
  if (strcmp(how, "short") == 0) table.struct_bytes = 64;
  if (strcmp(how, "nameless") == 0) table.name = "";
  if (strcmp(how, "comma") == 0) table.name = "bad,tcp";
  if (strcmp(how, "no endpoint_open") == 0) table.endpoint_open = NULL;
  if (strcmp(how, "no endpoint_close") == 0) table.endpoint_close = NULL;
  if (strcmp(how, "no connect") == 0) table.connect = NULL;
  if (strcmp(how, "no accept") == 0) table.accept = NULL;
  if (strcmp(how, "no link_poll") == 0) table.link_poll = NULL;
  if (strcmp(how, "no link_close") == 0) table.link_close = NULL;
  if (strcmp(how, "no acquire") == 0) table.acquire = NULL;
  if (strcmp(how, "no publish") == 0) table.publish = NULL;
  if (strcmp(how, "no peek") == 0) table.peek = NULL;
  if (strcmp(how, "no release") == 0) table.release = NULL;
  if (strcmp(how, "no card") != 0) return &table;
  snprintf(why, why_bytes, "there is no such card");
  return NULL;
}
