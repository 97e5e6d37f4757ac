#include "collectives.h"

int main(int argc, char** argv) {
  return tutti::perf::perf_main(argc, argv, tutti::perf::kBroadcast);
}
