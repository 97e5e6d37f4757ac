// This header: what hops, messages and bytes cost. The built-in prices are those of measured machines; a file describes
// other ones. Values; any thread.
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
  std::vector<std::string> given;  // names of the prices in the file
  std::string network_file;        // as the file names it; "": none
  std::optional<Cluster> network;  // the network in network_file
  std::string network_text;        // what that says
};

Prices built_in_prices();
// Ranks whose prices or networks differ would choose differently.
uint64_t fingerprint(const Prices& prices, std::string_view network_text = {});

// A price: its name in a file, "shm.hop", and what it is for.
struct NamedPrice {
  std::string name, help;
  double* value;
};
std::vector<NamedPrice> by_name(Prices& prices);

// Lines of "name = nanoseconds"; '#' begins a comment. Missing prices are the built-in ones. "network = FILE" names a
// file that describes hosts and racks (topology/cluster.h), relative to this one unless it begins with '/';
// find_prices() reads it. kInvalidUsage names the line and the remedy; `file` is for that message.
Result<PriceList> prices_from_text(std::string_view text, const std::string& file);
// What prices_from_text() reads, with every price and what it means.
std::string to_text(const Prices& prices);

// $XDG_CONFIG_HOME, else ~/.config; "" if neither is known.
std::string users_configuration();
// Reads the file that TUTTI_TUNE_FILE names, else the first that exists of tutti/tuning in $XDG_CONFIG_HOME (~/.config)
// and in /etc; else returns the built-in prices. kInvalidUsage: the file cannot be read (a missing one only if
// TUTTI_TUNE_FILE names it), or as above.
Result<PriceList> find_prices();

}  // namespace tutti
