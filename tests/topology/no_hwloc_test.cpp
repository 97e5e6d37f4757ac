// What a build without hwloc says about files.
#include "catch.h"
#include "topology/machine.h"

using namespace tutti;

TEST_CASE("without hwloc: files are refused with the remedy") {
  for (const Error& error : {read_machine("some.xml").error(), synthetic_machine("pack:2").error(),
                             dump_machine("/tmp/tutti-not-written.xml").error()}) {
    CHECK(error.code == Code::kInvalidUsage);
    CHECK(error.message.find("-Dhwloc=enabled") != std::string::npos);
  }
}
