// This header: what hops, messages and bytes cost. Built in are those of a machine that was measured; a file describes
// another one. Values; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "plan/cost.h"
#include "topology/cluster.h"

namespace tutti {

struct PriceList {
  Prices prices;
  std::string file;                // "": all are built in
  std::vector<std::string> given;  // the names of those that it has
  std::string network_file;        // as it says; "": none
  std::optional<Cluster> network;  // what that describes
};

Prices built_in_prices();
// Ranks whose prices differ would choose differently.
uint64_t fingerprint(const Prices& prices);

// A price by its name in a file, "shm.hop", and what it is for.
struct NamedPrice {
  std::string name, help;
  double* value;
};
std::vector<NamedPrice> by_name(Prices& prices);

// One "name = nanoseconds" on a line; '#' begins a comment. What is missing is built in. "network = FILE" names a file
// that describes hosts and racks (topology/cluster.h), beside this one if it begins with no '/'; find_prices() reads
// it. kInvalidUsage names the line and the remedy; `file` is for that sentence.
Result<PriceList> prices_from_text(std::string_view text, const std::string& file);
// What prices_from_text() reads, with every price and what it means.
std::string to_text(const Prices& prices);

// $XDG_CONFIG_HOME, else ~/.config; "" where there is neither.
std::string users_configuration();
// The file that TUTTI_TUNE_FILE names, else tutti/tuning in $XDG_CONFIG_HOME (~/.config) or /etc, the first there is;
// else what is built in. kInvalidUsage: it cannot be read (an absent one only if TUTTI_TUNE_FILE names it), or as
// above.
Result<PriceList> find_prices();

}  // namespace tutti
