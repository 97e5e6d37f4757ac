// The interpreter understands everything that nvcc makes of the kernels, and finds a kernel's mistakes.
#include <cstdio>
#include <vector>

#include "catch.h"
#include "launch.h"
#include "real_kernels.h"

using namespace tutti_test::ptx;

namespace {

// A kernel with one argument, an address, for at most 64 threads.
std::string kernel_of(const std::string& body) {
  return ".version 9.0\n.target sm_90\n.address_size 64\n.entry planted(\n.param .u64 planted_param_0\n)\n{\n"
         ".shared .align 8 .b8 room[64];\nld.param.u64 %rd1, [planted_param_0];\nmov.u32 %r1, %tid.x;\n" +
         body + "ret;\n}\n";
}

// The fault of two blocks of 64 threads that are given 256 bytes, and the bytes afterwards.
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
  CHECK(module.kernels.size() == 71);  // tests below must cover a new kernel, too
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
  // Reversed through shared memory, with a barrier.
  REQUIRE(run_planted(kMyWord + kMyRoom + kFirstEight + "st.shared.u32 [%r2], %r1;\n$L_after:\nbar.sync 0;\n" +
                          "ld.shared.u32 %r4, [room+40];\nst.global.u32 [%rd2], %r4;\n",
                      &words) == "");
  for (const uint32_t word : words) REQUIRE(word == 5);
  // Diverged threads meet again, and add up their numbers.
  REQUIRE(run_planted(kMyWord + "and.b32 %r5, %r1, 1;\nsetp.eq.s32 %p1, %r5, 0;\nmov.u32 %r6, 1;\n" +
                          "@%p1 bra $L_even;\nmov.u32 %r6, 100;\n$L_even:\n" +
                          "shfl.sync.bfly.b32 %r7|%p2, %r6, 1, 31, -1;\nst.global.u32 [%rd2], %r7;\n",
                      &words) == "");
  for (uint32_t i = 0; i < 64; i++) REQUIRE(words[i] == (i % 2 == 0 ? 100 : 1));
}

TEST_CASE("kernels with several parameters, and with assembly that stands in the source") {
  Module module;
  module.add_text(
      ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry several(\n.param .u32 several_param_0,\n"
      ".param .u64 several_param_1,\n.param .align 8 .b8 several_param_2[16]\n)\n{\nld.param.u64 %rd1, "
      "[several_param_1];\nld.param.u32 %r1, [several_param_0];\nld.param.u64 %rd2, [several_param_2+8];\n{\n"
      ".reg .b64 %lhs;\nshl.b64 %lhs, %rd2, 48;\nshr.b64 %lhs, %lhs, 47;\nadd.u64 %rd3, %lhs, 1;\n}\n"
      "st.global.u64 [%rd1], %rd3;\nred.global.add.u64 [%rd1], %rd2;\nmul.hi.u32 %r2, %r1, %r1;\n"
      "shf.l.wrap.b32 %r2, %r1, %r2, 4;\nst.global.u32 [%rd1+8], %r2;\nret;\n}\n");
  REQUIRE(module.problems.empty());
  const Kernel& kernel = *module.kernels.at(0);
  REQUIRE(kernel.parameters.size() == 3);
  uint64_t words[2] = {};
  struct {
    uint32_t number = 0x80000001;
    uint64_t* to;
    uint64_t pair[2] = {0, 0xffff8001};
  } argument;
  argument.to = words;
  CHECK(kernel.parameters[1].at == 8);
  CHECK(kernel.parameters[2].bytes == 16);
  Grid grid(&kernel, &argument, sizeof argument, 1, 1);
  grid.readable.add(words, sizeof words);
  grid.writable.add(words, sizeof words);
  CHECK(run(&grid, false).empty());
  CHECK(words[0] == 0x10003 + uint64_t{0xffff8001});
  CHECK(words[1] == 0x00000018);
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
