// Catch2 v2 wants its main compiled somewhere; with v3 it comes from catch2-with-main.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>

// As in v3, a filter that matches no test is a failure.
int main(int argc, char** argv) {
  Catch::Session session;
  session.configData().warnings = Catch::WarnAbout::NoTests;
  return session.run(argc, argv);
}
#endif
