#include "topology/cluster.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

namespace tutti {
namespace {

using Json = nlohmann::json;

constexpr double kBytesOfGbit = 1e9 / 8;

// Reads one object's fields, and remembers the names asked for, so that end() finds unknown ones.
class Fields {
 public:
  Fields(const Json& object, std::string place) : object_(object), place_(std::move(place)) {}

  bool has(const char* name) const { return object_.contains(name); }
  Error wrong(const std::string& what) const { return {Code::kInvalidUsage, place_ + ": " + what}; }

  // All leave `value` as it is if there is no such field; it may be a std::optional.
  template <class Value>
  Result<void> number(const char* name, double least, Value* value) {
    return read<double>(name, format("a number of at least %g", least), value, [&](const Json& field) {
      return field.is_number() && field.get<double>() >= least && field.get<double>() <= 1e15;
    });
  }
  template <class Value>
  Result<void> count(const char* name, int least, Value* value) {
    return read<Value>(name, format("a whole number of at least %d", least), value, [&](const Json& field) {
      return field.is_number_integer() && field.get<int64_t>() >= least && field.get<int64_t>() <= 1 << 30;
    });
  }
  Result<void> flag(const char* name, bool* value) {
    return read<bool>(name, "true or false", value, [](const Json& field) { return field.is_boolean(); });
  }
  template <class Value>
  Result<void> speed(Value* bytes_per_second) {
    std::optional<double> gbits;
    TUTTI_TRY(number("gbit_per_s", 0, &gbits));
    if (gbits == 0) return wrong("gbit_per_s is 0, so nothing would ever arrive; give the speed of the wire");
    if (gbits > 1e9) return wrong("gbit_per_s is over 1e9, faster than any wire; give the speed of the wire");
    if (gbits) *bytes_per_second = *gbits * kBytesOfGbit;
    return {};
  }
  template <class Value>
  Result<void> microseconds(const char* name, Value* ns) {
    std::optional<double> us;
    TUTTI_TRY(number(name, 0, &us));
    if (us) *ns = *us * 1000;
    return {};
  }
  void know(const char* name) { known_.insert(name); }
  Result<void> end() const {
    std::string names;
    for (const std::string& name : known_) names += (names.empty() ? "" : ", ") + name;
    for (const auto& [name, value] : object_.items())
      if (known_.count(name) == 0) return wrong("there is no field '" + name + "' here; the fields are: " + names);
    return {};
  }

 private:
  template <class Type, class Value, class Fits>
  Result<void> read(const char* name, const std::string& wanted, Value* value, Fits fits) {
    known_.insert(name);
    const auto found = object_.find(name);
    if (found == object_.end()) return {};
    if (!fits(*found)) return wrong(format("%s is %s; give %s", name, found->dump().c_str(), wanted.c_str()));
    *value = found->template get<Type>();
    return {};
  }

  const Json& object_;
  std::string place_;
  std::set<std::string> known_;
};

Result<void> read_way(const Json& json, const std::string& file, const char* name, Conduit* way) {
  const auto found = json.find(name);
  if (found == json.end() || !found->is_object())
    return Error{Code::kInvalidUsage, file + ": " + name +
                                          " is missing; give {\"gbit_per_s\": ..., \"latency_us\": "
                                          "...}"};
  Fields fields(*found, file + ", " + name);
  for (const char* needed : {"gbit_per_s", "latency_us"})
    if (!fields.has(needed)) return fields.wrong(std::string(needed) + " is missing");
  TUTTI_TRY(fields.speed(&way->bytes_per_second));
  TUTTI_TRY(fields.microseconds("latency_us", &way->latency_ns));
  TUTTI_TRY(fields.microseconds("message_us", &way->message_ns));
  TUTTI_TRY(fields.number("byte_ns", 0, &way->byte_ns));
  if (name == std::string_view("nic")) TUTTI_TRY(fields.number("burst_bytes", 0, &way->burst_bytes));
  return fields.end();
}

// The host, NIC, rank or rack of the exception has to exist, as far as the file says how many there are.
Result<void> read_place(Fields& fields, const Cluster& cluster, Exception& exception) {
  const int unknown = cluster.racks == 0 ? 1 << 30 : 0, hosts = cluster.racks * cluster.hosts_per_rack + unknown;
  const std::tuple<const char*, int*, int> numbers[] = {{"host", &exception.host, hosts},
                                                        {"nic", &exception.nic, cluster.nics_per_host},
                                                        {"rank", &exception.rank, cluster.capacity() + unknown},
                                                        {"rack", &exception.rack, cluster.racks + unknown},
                                                        {"from_host", &exception.from_host, hosts},
                                                        {"to_host", &exception.to_host, hosts}};
  for (const auto& [name, value, n] : numbers) {
    TUTTI_TRY(fields.count(name, 0, value));
    if (*value >= n) return fields.wrong(format("there is no %s %d; the last one is %d", name, *value, n - 1));
  }
  return {};
}

// An exception must be about one thing, and change only what that thing has.
Result<void> check_kind(const Fields& fields, const Exception& exception) {
  const bool is_way = exception.from_host >= 0 || exception.to_host >= 0,
             is_half = is_way && (exception.from_host < 0 || exception.to_host < 0);
  if (is_half || (exception.host >= 0) + (exception.rank >= 0) + (exception.rack >= 0) + is_way != 1)
    return fields.wrong("give exactly one of host, rank, rack, or from_host and to_host");
  if (is_way && exception.from_host == exception.to_host) return fields.wrong("from_host and to_host are the same");
  const bool has_wire = exception.rank < 0, has_cpu = exception.host >= 0 || exception.rank >= 0;
  if (exception.bytes_per_second && !has_wire) return fields.wrong("a rank has no gbit_per_s; give its host's");
  if (exception.slowdown && (!has_cpu || exception.nic >= 0))
    return fields.wrong("slowdown applies only to a host or a rank");
  if (exception.starts_late_ns && exception.rank < 0) return fields.wrong("starts_late_us applies only to a rank");
  if (exception.dies_ns && exception.rank < 0) return fields.wrong("dies_us applies only to a rank");
  if (exception.nic >= 0 && exception.host < 0) return fields.wrong("nic needs a host");
  if (exception.bytes_per_second || exception.slowdown || exception.starts_late_ns || exception.dies_ns) return {};
  return fields.wrong("it changes nothing; give gbit_per_s, slowdown, starts_late_us or dies_us");
}

Result<void> read_exception(const Json& json, const std::string& place, Cluster* cluster) {
  Fields fields(json, place);
  if (!json.is_object()) return fields.wrong("it is not an object; give one such as {\"host\": 3, \"gbit_per_s\": 1}");
  Exception exception;
  TUTTI_TRY(read_place(fields, *cluster, exception));
  TUTTI_TRY(fields.speed(&exception.bytes_per_second));
  TUTTI_TRY(fields.number("slowdown", 1, &exception.slowdown));
  TUTTI_TRY(fields.microseconds("starts_late_us", &exception.starts_late_ns));
  TUTTI_TRY(fields.microseconds("dies_us", &exception.dies_ns));
  TUTTI_TRY(fields.end());
  TUTTI_TRY(check_kind(fields, exception));
  cluster->exceptions.push_back(exception);
  return {};
}

Result<void> read_names(const Json& names, const Fields& fields, Cluster* cluster) {
  if (!names.is_array()) return fields.wrong("hosts is not a list of names");
  for (const Json& name : names) {
    if (!name.is_string()) return fields.wrong("hosts contains " + name.dump() + "; give names");
    std::vector<std::string>& hosts = cluster->hosts;
    const auto& text = name.get_ref<const std::string&>();
    if (!text.empty() && std::find(hosts.begin(), hosts.end(), text) != hosts.end())
      return fields.wrong("hosts contains " + name.dump() + " twice");
    cluster->hosts.push_back(name.get<std::string>());
  }
  const int room = cluster->racks * cluster->hosts_per_rack, n = static_cast<int>(names.size());
  if (room == 0 || n <= room) return {};
  return fields.wrong(format("hosts has %d names, but the racks have room for only %d", n, room));
}

Result<void> read_counts(Fields& fields, Cluster* cluster) {
  for (const char* needed : {"hosts_per_rack", "ranks_per_host"})
    if (!fields.has(needed)) return fields.wrong(std::string(needed) + " is missing");
  TUTTI_TRY(fields.count("racks", 1, &cluster->racks));
  TUTTI_TRY(fields.count("hosts_per_rack", 1, &cluster->hosts_per_rack));
  TUTTI_TRY(fields.count("ranks_per_host", 1, &cluster->ranks_per_host));
  TUTTI_TRY(fields.count("nics_per_host", 1, &cluster->nics_per_host));
  TUTTI_TRY(fields.count("cpus_per_host", 1, &cluster->cpus.per_host));
  TUTTI_TRY(fields.flag("shares_cpus", &cluster->cpus.are_shared));
  TUTTI_TRY(fields.flag("rdma", &cluster->links.rdma));
  TUTTI_TRY(fields.flag("shares_memory", &cluster->links.shares_memory));
  TUTTI_TRY(fields.number("summed_byte_ns", 0, &cluster->cpus.summed_byte_ns));
  TUTTI_TRY(fields.number("cache_bytes", 0, &cluster->cpus.cache_bytes));
  TUTTI_TRY(fields.number("far_byte_ns", 0, &cluster->cpus.far_byte_ns));
  TUTTI_TRY(fields.number("evicted_byte_ns", 0, &cluster->cpus.evicted_byte_ns));
  TUTTI_TRY(fields.microseconds("operation_us", &cluster->cpus.operation_ns));
  TUTTI_TRY(fields.microseconds("switch_us", &cluster->cpus.switch_ns));
  TUTTI_TRY(fields.count("slots", 2, &cluster->links.slots));
  TUTTI_TRY(fields.count("slot_bytes", 64, &cluster->links.slot_bytes));
  cluster->links.slot_bytes -= cluster->links.slot_bytes % 64;
  const double all = 1.0 * std::max(1, cluster->racks) * cluster->hosts_per_rack * cluster->ranks_per_host;
  if (all > 1 << 30) return fields.wrong(format("%.0f ranks are too many", all));
  return {};
}

}  // namespace

Result<Cluster> cluster_from_json(std::string_view text, const std::string& file) {
  const Json json = Json::parse(text, nullptr, false);
  Fields fields(json, file);
  if (!json.is_object()) return fields.wrong("it does not hold a JSON object; tools/sim/README.md shows one");
  Cluster cluster;
  TUTTI_TRY(read_counts(fields, &cluster));
  for (const char* name : {"local", "nic", "rack", "exceptions", "hosts", "name"}) fields.know(name);
  TUTTI_TRY(fields.end());
  TUTTI_TRY(read_way(json, file, "local", &cluster.local));
  TUTTI_TRY(read_way(json, file, "nic", &cluster.nic));
  if (cluster.racks != 1) TUTTI_TRY(read_way(json, file, "rack", &cluster.rack));
  TUTTI_TRY(read_names(json.value("hosts", Json::array()), fields, &cluster));
  const Json exceptions = json.value("exceptions", Json::array());
  if (!exceptions.is_array()) return fields.wrong("exceptions is not a list");
  for (size_t i = 0; i < exceptions.size(); i++)
    TUTTI_TRY(read_exception(exceptions[i], format("%s, exceptions[%zu]", file.c_str(), i), &cluster));
  return cluster;
}

}  // namespace tutti
