// All that nvcc makes of the kernels is understood, and what goes wrong in a kernel is found.
#include <cstdio>
#include <vector>

#include "catch.h"
#include "launch.h"
#include "real_kernels.h"

using namespace tutti_test::ptx;

namespace {

// A kernel of one argument, an address, and 64 threads at most.
std::string kernel_of(const std::string& body) {
  return ".version 9.0\n.target sm_90\n.address_size 64\n.entry planted(\n.param .u64 planted_param_0[8]\n)\n{\n"
         ".shared .align 8 .b8 room[64];\nld.param.u64 %rd1, [planted_param_0];\nmov.u32 %r1, %tid.x;\n" +
         body + "ret;\n}\n";
}

// What comes of it in two blocks of 64 threads, which are given 256 bytes.
std::string run_planted(const std::string& body, std::vector<uint32_t>* words) {
  Module module;
  module.add_text(kernel_of(body));
  INFO(body);
  for (const std::string& problem : module.problems) FAIL_CHECK(problem);
  REQUIRE(module.kernels.size() == 1);
  const uint32_t* const at = words->data();
  Grid grid(module.kernels[0].get(), &at, sizeof at, 2, 64);
  grid.readable.add(at, words->size() * 4);
  grid.writable.add(at, words->size() * 4);
  return run(&grid, false);
}

std::string fault_of(const std::string& body) {
  std::vector<uint32_t> words(64);
  const std::string fault = run_planted(body, &words);
  return fault.substr(0, fault.find(": kernel"));
}

const std::string kMyWord = "mul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %rd1, %rd2;\n";
const std::string kMyRoom = "mov.u32 %r2, room;\nand.b32 %r3, %r1, 7;\nshl.b32 %r3, %r3, 3;\nadd.s32 %r2, %r2, %r3;\n";
const std::string kFirstEight = "setp.ge.u32 %p1, %r1, 8;\n@%p1 bra $L_after;\n";

}  // namespace

TEST_CASE("all PTX of the kernels is understood") {
  const Module& module = real_module();
  for (const std::string& problem : module.problems) FAIL_CHECK(problem);
  size_t lines = 0;
  for (const auto& kernel : module.kernels) lines += kernel->code.size();
  printf("PTX: kernels understood %zu of %zu, %zu spellings in %zu lines\n", module.kernels.size(),
         module.kernels.size(), module.spellings.size(), lines);
  CHECK(module.kernels.size() == 67);  // a new kernel joins the tests below, and is counted here
}

TEST_CASE("what is not known of PTX is told") {
  Module module;
  module.add_text(kernel_of("frob.u32 %r2, %r1;\nld.weird.u32 %r2, [%rd1];\nmov.u32 %r2, %nothing;\n.frob 1\n"));
  REQUIRE(module.problems.size() >= 3);
  CHECK(module.problems[0].find("frob.u32 (line 11)") != std::string::npos);
  CHECK(module.problems[1].find("ld.weird.u32") != std::string::npos);
}

TEST_CASE("kernels that are right run to their end") {
  std::vector<uint32_t> words(64);
  REQUIRE(run_planted(kMyWord + "st.global.u32 [%rd2], %r1;\n", &words) == "");
  for (uint32_t i = 0; i < 64; i++) REQUIRE(words[i] == i);
  // Through shared memory, turned round by a barrier.
  REQUIRE(run_planted(kMyWord + kMyRoom + kFirstEight + "st.shared.u32 [%r2], %r1;\n$L_after:\nbar.sync 0;\n" +
                          "ld.shared.u32 %r4, [room+40];\nst.global.u32 [%rd2], %r4;\n",
                      &words) == "");
  for (const uint32_t word : words) REQUIRE(word == 5);
  // Threads that went apart meet again, and add up their numbers.
  REQUIRE(run_planted(kMyWord + "and.b32 %r5, %r1, 1;\nsetp.eq.s32 %p1, %r5, 0;\nmov.u32 %r6, 1;\n" +
                          "@%p1 bra $L_even;\nmov.u32 %r6, 100;\n$L_even:\n" +
                          "shfl.sync.bfly.b32 %r7|%p2, %r6, 1, 31, -1;\nst.global.u32 [%rd2], %r7;\n",
                      &words) == "");
  for (uint32_t i = 0; i < 64; i++) REQUIRE(words[i] == (i % 2 == 0 ? 100 : 1));
}

TEST_CASE("accesses to memory that was not given are found, and those that are not aligned") {
  CHECK(fault_of(kMyWord + "ld.global.u32 %r4, [%rd2+4];\n").find("a read outside") == 0);
  CHECK(fault_of(kMyWord + "st.global.u32 [%rd2+-4], %r4;\n").find("a write outside") == 0);
  CHECK(fault_of("ld.global.u32 %r4, [%rd1+2];\n").find("an access that is not aligned") == 0);
  CHECK(fault_of("ld.global.v2.u32 {%r4, %r5}, [%rd1+4];\n").find("an access that is not aligned") == 0);
  CHECK(fault_of("ld.shared.u32 %r4, [room+64];\n").find("an access outside of the block's shared") == 0);
  CHECK(fault_of("ld.param.u64 %rd3, [planted_param_0+8];\n").find("a read outside") == 0);
}

TEST_CASE("mistakes with shared memory are found") {
  CHECK(fault_of("ld.shared.u32 %r4, [room];\n").find("shared memory is read that nobody has written") == 0);
  CHECK(fault_of("st.shared.u32 [room], %r1;\n").find("shared memory is written by two threads") == 0);
  const std::string one_writes =
      "setp.ne.s32 %p1, %r1, 0;\n@%p1 bra $L_after;\nst.shared.u32 [room], %r1;\n$L_after:\n";
  CHECK(fault_of(one_writes + "ld.shared.u32 %r4, [room];\n").find("while another thread writes it") !=
        std::string::npos);
  CHECK(fault_of(one_writes + "bar.sync 0;\nld.shared.u32 %r4, [room];\n") == "");
  CHECK(fault_of(one_writes + "bar.sync 0;\nld.shared.u32 %r4, [room];\nsetp.ne.s32 %p1, %r1, 9;\n" +
                 "@%p1 bra $L_end;\nst.shared.u32 [room], %r1;\n$L_end:\n")
            .find("while another thread reads it") != std::string::npos);
}

TEST_CASE("barriers and shuffles that not all threads reach are found") {
  CHECK(fault_of(kFirstEight + "bar.sync 0;\n$L_after:\n").find("a barrier that not all threads reach") == 0);
  CHECK(fault_of(kFirstEight + "bar.sync 0;\nbra $L_end;\n$L_after:\nbar.sync 0;\n$L_end:\n")
            .find("different barriers") != std::string::npos);
  CHECK(fault_of(kFirstEight + "shfl.sync.bfly.b32 %r7|%p2, %r1, 1, 31, -1;\n$L_after:\nbar.sync 0;\n")
            .find("a shuffle") == 0);
}
