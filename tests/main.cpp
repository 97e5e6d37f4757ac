// Catch2 v2 wants its main compiled somewhere; with v3 it comes from catch2-with-main.
#if !__has_include(<catch2/catch_all.hpp>)
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
