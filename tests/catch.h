// Catch2 v2 (Debian 12) and v3 (Debian 13, Ubuntu 24.04) under one name.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#else
#include <catch2/catch.hpp>
// v3 has no bare Approx: with the declaration it is an error with v2, too.
namespace Catch {
using Approx = Detail::Approx;
}
namespace tutti {
class Approx;
}
#endif
