// tutti-tune: measures what hops, messages and bytes cost on this machine, and writes the file of prices with which the
// library chooses algorithms.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "../cli/command_line.h"
#include "../perf/launch.h"
#include "base/env.h"
#include "base/file.h"
#include "fit.h"
#include "host.h"
#include "measure.h"
#include "network.h"

namespace tutti::tune {
namespace {

using perf::Status, perf::text, perf::usage_error;

constexpr const char* kTool = "tutti-tune";
constexpr const char* kExamples =
    "\nExamples:\n"
    "  tutti-tune --procs 4                measures shared memory and TCP within this host, writes the user's file\n"
    "  mpirun -np 8 tutti-tune -o /etc/tutti/tuning    between the hosts of a job; or srun\n"
    "  torchrun --no-python --nproc-per-node 8 tutti-tune    the same, started by torchrun\n"
    "  mpirun -np 8 --map-by node tutti-tune --network net.json    finds racks and slow hosts\n"
    "  tutti-tune --procs 2 --check        only shows how good the choices are\n"
    "  tutti-tune --procs 2 --samples two.json; tutti-tune --procs 8 --samples eight.json\n"
    "  tutti-tune --fit two.json eight.json -o FILE    prices for both\n"
    "  tutti-tune --fit two.json eight.json --simulated shm -o host.json    this host, for tutti-sim\n"
    "The file is found at TUTTI_TUNE_FILE, $XDG_CONFIG_HOME/tutti/tuning (~/.config) or /etc/tutti/tuning; all ranks "
    "need\n"
    "the same. Prices that were not measured stay as they are in it. Exit status: 0 good, 2 wrong usage, 3 a rank "
    "failed.\n";

struct Settings {
  perf::Options perf;
  std::string output, samples_path, network_path, simulated;
  std::vector<std::string> fit_from;
  bool only_check = false;
};

// Refuses options without an effect: a file that is not written, a check that is not made, sizes of no operation.
Status check_combination(const CLI::App& app, const Settings& settings) {
  const auto refuse = [&](const char* option, const char* with) {
    return usage_error(text("%s cannot be combined with %s; leave it out", option, with));
  };
  for (const char* option : {"--procs", "-t", "-b", "-e", "-f", "-n", "--transport"})
    if (!settings.fit_from.empty() && app.count(option) > 0) return refuse(option, "--fit");
  for (const char* option : {"--samples", "--check", "--fit", "-o", "-b", "-e", "-f", "-n"})
    if (!settings.network_path.empty() && app.count(option) > 0) return refuse(option, "--network");
  if (settings.only_check && app.count("-o") > 0) return refuse("-o", "--check");
  for (const char* option : {"--samples", "--check"})
    if (!settings.simulated.empty() && app.count(option) > 0) return refuse(option, "--simulated");
  return {};
}

Status parse(int argc, char** argv, Settings* settings, std::string* help) {
  std::string min_bytes = "8", max_bytes = "16M";
  size_t factor = 8;
  perf::Options& perf = settings->perf;
  perf.iters = 7;
  CLI::App app(
      "Measures what messages and bytes cost on this machine, and writes the prices to a file that the library reads.",
      kTool);
  app.option_defaults()->always_capture_default();
  app.footer(kExamples);
  app.add_option("-b,--minbytes", min_bytes, "smallest size");
  app.add_option("-e,--maxbytes", max_bytes, "largest size");
  app.add_option("-f,--stepfactor", factor, "multiply by this for the next size")->check(CLI::Range(2, 1 << 20));
  app.add_option("-n,--turns", perf.iters, "repetitions of each algorithm")->check(CLI::Range(1, 10000));
  app.add_option("--procs", perf.procs, "fork this many local processes")->check(CLI::Range(0, 4096));
  app.add_option("-t,--nthreads", perf.threads, "ranks as threads of each process")->check(CLI::Range(1, 4096));
  app.add_option("--transport", perf.transports,
                 "only over these: shm,tcp; default: what the library uses, and within a host also tcp");
  app.add_flag("--check", settings->only_check, "write no file: only show how good the choices are");
  app.add_option("-o,--output", settings->output, "the file to write; default: ~/.config/tutti/tuning");
  app.add_option("--samples", settings->samples_path, "write the measurements to this file, as JSON");
  app.add_option(
      "--network", settings->network_path,
      "measure only how fast hosts reach each other, one rank of each, and write racks and slow hosts to this "
      "file; a line \"network = FILE\" in the tuning file names it");
  app.add_option("--fit", settings->fit_from,
                 "measure nothing: fit prices to files written with --samples; of what several have, to the median");
  app.add_option("--simulated", settings->simulated,
                 "with --fit and -o: write a topology for tutti-sim (its --topology) instead: the hosts, as measured "
                 "over this: shm, tcp (on one host), network, namespaces (that stand for hosts)")
      ->check(CLI::IsMember({"shm", "tcp", "network", "namespaces"}));
  try {  // CLI11 reports errors by exceptions
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    *help = app.help();
    return {};
  } catch (const CLI::ParseError& e) {
    return usage_error(cli::complaint(app, e));
  }
  perf.step_factor = factor;
  if (Status s = perf::parse_size(min_bytes, "-b", &perf.min_bytes); !s) return s;
  if (Status s = perf::parse_size(max_bytes, "-e", &perf.max_bytes); !s) return s;
  if (!settings->simulated.empty() && (settings->fit_from.empty() || settings->output.empty()))
    return usage_error("--simulated needs --fit FILES, and -o FILE to write to");
  if (Status s = check_combination(app, *settings); !s) return s;
  if (perf.min_bytes == 0 || perf.min_bytes > perf.max_bytes)
    return usage_error(
        text("-b %s -e %s: must be sizes from 1 up, the larger one last", min_bytes.c_str(), max_bytes.c_str()));
  return {};
}

Status users_file(std::string* path) {
  *path = env_string("TUTTI_TUNE_FILE");
  if (!path->empty()) return {};
  const std::string folder = users_configuration();
  if (folder.empty())
    return usage_error(
        "TUTTI_TUNE_FILE, XDG_CONFIG_HOME and HOME are all unset, so there is nowhere to write; give -o FILE");
  for (const std::string& part : {folder, folder + "/tutti"})
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST)
      return perf::Error{text("cannot make the folder %s: %s; give -o FILE", part.c_str(), strerror(errno))};
  *path = folder + "/tutti/tuning";
  return {};
}

// Before minutes of measuring.
Status check_output(const std::string& path) {
  if (path.empty()) return {};
  const auto may = check_writable(path);
  return may ? Status() : perf::Error{may.error().message};
}
Status check_files(const Settings& settings) {
  std::string path = settings.output;
  if (path.empty() && !settings.only_check)
    if (Status s = users_file(&path); !s) return s;
  if (Status s = check_output(path); !s) return s;
  return check_output(settings.samples_path);
}

Status write(const std::string& path, const std::string& bytes) {
  const auto written = write_file(path, bytes);
  if (written) return {};
  return perf::Error{written.error().message};
}

// Prices without a measurement are taken from `kept_from`, if that file exists and is valid.
Status write_prices(const std::string& path, const std::string& kept_from, Prices prices,
                    const std::vector<std::string>& fitted, size_t n_samples) {
  const auto before = read_file(kept_from);
  const auto old = prices_from_text(before ? before.value() : "", kept_from);
  std::string out =
      text("# What messages and bytes cost, in nanoseconds. Written by tutti-tune from %zu operations.\n", n_samples);
  Prices kept = old ? old.value().prices : built_in_prices();
  const auto lines = by_name(prices), others = by_name(kept);
  for (size_t i = 0; i < lines.size(); i++) {
    const bool is_new = std::find(fitted.begin(), fitted.end(), lines[i].name) != fitted.end();
    const bool was_there =
        old && std::find(old.value().given.begin(), old.value().given.end(), lines[i].name) != old.value().given.end();
    if (!is_new && !was_there) continue;
    const std::string value = is_new ? text("%.4g", *lines[i].value) : nlohmann::json(*others[i].value).dump();
    out += text("%s = %s  # %s\n", lines[i].name.c_str(), value.c_str(), lines[i].help.c_str());
  }
  if (old && !old.value().network_file.empty()) {
    const std::filesystem::path network = old.value().network_file;  // in the folder of the file that names it
    const auto folder = std::filesystem::path(kept_from).parent_path();
    out += "network = " + (kept_from == path ? network : folder / network).string() + "\n";
  }
  if (Status s = write(path, out); !s) return s;
  printf("# written: %s\n", path.c_str());
  return {};
}

void show(const std::vector<Sample>& samples, const char* label, const Prices& prices) {
  std::vector<std::string> groups;
  std::vector<std::vector<Sample>> by_group;
  for (const Sample& sample : samples) {
    const std::string name = tutti::to_text(sample.facts);
    if (groups.empty() || groups.back() != name) {
      groups.push_back(name);
      by_group.emplace_back();
    }
    by_group.back().push_back(sample);
  }
  for (size_t i = 0; i < groups.size(); i++)
    printf("# %s: %s; of %s", label, to_text(verdict_of(judge(by_group[i], prices))).c_str(), groups[i].c_str());
  if (groups.size() > 1) printf("# %s: all: %s\n", label, to_text(verdict_of(judge(samples, prices))).c_str());
}

Status conclude(const Settings& settings, const std::vector<Sample>& samples) {
  if (!settings.samples_path.empty())
    if (Status s = write(settings.samples_path, to_json(samples)); !s) return s;
  const auto now = find_prices();
  if (!now) return usage_error(now.error().message);
  show(samples, "as it is", now.value().prices);
  if (settings.only_check) return {};
  std::vector<std::string> fitted;
  const Prices prices = fit(samples, built_in_prices(), &fitted);
  show(samples, "with new prices", prices);
  std::string path = settings.output, kept_from = path;
  if (path.empty()) {
    if (Status s = users_file(&path); !s) return s;
    kept_from = now.value().file;  // /etc's, if the user's file replaces that
  }
  return write_prices(path, kept_from, prices, fitted, samples.size());
}

// Results count only if they could be printed: a disk may be full.
Status printed(Status done) {
  if (!done || (fflush(stdout) == 0 && ferror(stdout) == 0)) return done;
  return perf::Error{text("the results cannot be written: %s", strerror(errno))};
}

Status measure_all(const Settings& settings, tuttiComm_t comm) {
  perf::Team team;
  if (Status s = team.join(comm); !s) return s;
  if (team.n_ranks() == 1)
    return usage_error(
        "one rank alone sends nothing, so there is nothing to measure; give --procs 4, or use a launcher");
  if (Status s = team.agree(team.rank() == 0 ? check_files(settings) : Status()); !s) return s;
  std::vector<Sample> samples;
  if (Status s = measure(settings.perf, settings.perf.transports, team, &samples); !s) return s;
  std::vector<double> within_a_host(1,
                                    !samples.empty() && samples[0].facts.hosts == 1 && samples[0].facts.shares_memory);
  if (Status s = team.reduce(&within_a_host, tuttiMax); !s) return s;
  if (settings.perf.transports.empty() && within_a_host[0] > 0)
    if (Status s = measure(settings.perf, "tcp", team, &samples); !s) return s;
  return team.agree(team.rank() == 0 ? printed(conclude(settings, samples)) : Status());
}

Status find_network(const std::string& path, tuttiComm_t comm) {
  perf::Team team;
  if (Status s = team.join(comm); !s) return s;
  if (Status s = team.agree(team.rank() == 0 ? check_output(path) : Status()); !s) return s;
  std::string json;
  if (Status s = measure_network(team, &json); !s) return s;
  if (team.rank() != 0) return team.agree(Status());
  Status written = write(path, json);
  // The library looks for a relative name in the tuning file's folder.
  const std::string name = std::filesystem::absolute(path).string();
  if (written) printf("# written: %s; name it in the tuning file: network = %s\n", path.c_str(), name.c_str());
  return team.agree(printed(std::move(written)));
}

Status fit_files(const Settings& settings) {
  std::vector<Sample> samples;
  for (const std::string& path : settings.fit_from) {
    const auto file = read_file(path);
    if (!file) return usage_error(text("--fit %s cannot be read: %s", path.c_str(), strerror(file.error().sys_errno)));
    if (Status s = from_json(file.value(), path, &samples); !s) return s;
  }
  if (settings.simulated.empty()) return printed(conclude(settings, medians(samples)));
  std::string json;
  if (Status s = describe_hosts(medians(samples), settings.simulated, &json); !s) return s;
  return write(settings.output, json);
}

int fail(const Status& status) {
  if (status) return 0;
  fprintf(stderr, "%s: %s\n", kTool, status.error().message.c_str());
  return status.error().exit_status;
}

int run(int argc, char** argv) {
  Settings settings;
  std::string help;
  if (Status s = parse(argc, argv, &settings, &help); !s) return fail(s);
  if (!help.empty()) return fputs(help.c_str(), stdout) < 0 || fflush(stdout) != 0 ? perf::kExitFailed : 0;
  if (!settings.fit_from.empty()) return fail(fit_files(settings));
  return perf::launch(settings.perf, kTool, [&](tuttiComm_t comm) {
    return settings.network_path.empty() ? measure_all(settings, comm) : find_network(settings.network_path, comm);
  });
}

}  // namespace
}  // namespace tutti::tune

int main(int argc, char** argv) {
  return tutti::tune::run(argc, argv);
}
