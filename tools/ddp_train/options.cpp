#include "options.h"

#include <CLI/CLI.hpp>
#include <cerrno>

#include "../cli/command_line.h"
#include "../perf/launch.h"

namespace tutti::train {
namespace {

const char* const kAbout =
    "Trains a small network to predict the next character of a text, data-parallel over ranks, with Tutti's ddp.h.\n"
    "The global batch is divided among the ranks, so the losses do not depend on their number, except for rounding.";

const char* const kExamples =
    "\nExamples:\n"
    "  @ --procs 2                                     two processes\n"
    "  @ --procs 2 --threads --no-overlap              two threads; gradients are reduced after the backward pass\n"
    "  @ --checkpoint run.bin --checkpoint-every 50    and, to go on with it: --checkpoint run.bin --resume\n"
    "  @ --procs 3 --batch 126 --die 1@20              rank 1 is killed in step 20; the others go on\n"
    "  @ --procs 4 --scaling                           strong and weak scaling, overlap on and off\n"
    "  mpirun -np 4 @                                  the launcher's processes; or srun\n"
    "  torchrun --no-python --nproc-per-node 4 @       the same, started by torchrun\n"
    "Exit status: 0 good, 2 wrong usage, 3 a rank failed.\n";

// "@ " stands for the name that the program was called by.
std::string with_name(std::string text) {
  for (size_t at; (at = text.find("@ ")) != std::string::npos;) text.replace(at, 1, program_invocation_short_name);
  return text;
}

void add_model_options(CLI::App& app, Options& o) {
  app.add_option("--data", o.data, "the text; otherwise the files of /usr/share/common-licenses")->group("Model");
  app.add_option("--context", o.context, "how many characters the next one is predicted from")
      ->group("Model")
      ->check(CLI::Range(1, 1024));
  app.add_option("--embedding", o.embedding, "how many numbers represent a character")
      ->group("Model")
      ->check(CLI::Range(1, 4096));
  app.add_option("--hidden", o.hidden, "units of a hidden layer")->group("Model")->check(CLI::Range(1, 1 << 16));
  app.add_option("--layers", o.layers, "hidden layers")->group("Model")->check(CLI::Range(0, 1000));
  app.add_option("--seed", o.seed, "random seed of the weights and the order of samples")->group("Model");
}

void add_training_options(CLI::App& app, Options& o) {
  app.add_option("--steps", o.steps, "of the optimizer")->group("Training")->check(CLI::NonNegativeNumber);
  app.add_option("--batch", o.batch, "samples per step, over all ranks")
      ->group("Training")
      ->check(CLI::Range(1, 1 << 24));
  app.add_option("--accumulate", o.accumulate,
                 "parts that a rank's batch is split into; gradients are reduced after the last one")
      ->group("Training")
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--lr", o.learning_rate, "learning rate")->group("Training");
  app.add_option("--momentum", o.momentum, "of the gradient descent")->group("Training");
  app.add_option(
         "--loss-scale", o.loss_scale,
         "factor of the loss, halved (and the step skipped by all) when a gradient overflows, doubled after 200 "
         "good steps; 0: none")
      ->group("Training")
      ->check(CLI::Range(0.0f, 1e38f));
  app.add_option("--checkpoint", o.checkpoint, "file for --checkpoint-every and --resume")->group("Training");
  app.add_option("--checkpoint-every", o.checkpoint_every, "steps; 0: only at the end")
      ->group("Training")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--resume", o.resume, "continue from the checkpoint, if there is one")->group("Training");
}

void add_gradient_options(CLI::App& app, Options& o, std::string& gradients) {
  app.add_option("--gradients", gradients, "float or bfloat16")
      ->group("Gradients")
      ->check(CLI::IsMember({"float", "bfloat16"}));
  app.add_option("--compress", o.compress, "none, fp16, bf16, int8, e4m3 or powersgd")
      ->group("Gradients")
      ->check(CLI::IsMember({"none", "fp16", "bf16", "int8", "e4m3", "powersgd"}));
  app.add_flag("--error-feedback", o.error_feedback, "add what int8 and e4m3 rounded off to the next step's gradients")
      ->group("Gradients");
  app.add_option("--first-bucket", o.first_bucket_bytes, "bytes of the first bucket")
      ->group("Gradients")
      ->transform(CLI::AsSizeValue(false));
  app.add_option("--bucket", o.bucket_bytes, "bytes of the others")
      ->group("Gradients")
      ->transform(CLI::AsSizeValue(false));
  app.add_flag("--no-overlap", o.no_overlap, "reduce when the backward pass is over")->group("Gradients");
  app.add_option("--check-every", o.check_every, "look for NaN and for ranks that differ every so many steps; 0: never")
      ->group("Gradients")
      ->check(CLI::NonNegativeNumber);
}

void add_run_options(CLI::App& app, Options& o, std::string& die) {
  app.add_option("--procs", o.procs,
                 "ranks, as local processes; 0: those of mpirun, srun or torchrun; default: these, else 2")
      ->group("Ranks")
      ->default_str("")
      ->check(CLI::Range(0, 1024));
  app.add_flag("--threads", o.threads, "the ranks are threads of one process")->group("Ranks");
  app.add_option("--die", die, "RANK@STEP: that rank is killed in that step, for trying out what happens")
      ->group("Ranks");
  app.add_option("--log-every", o.log_every, "steps between lines")->group("Output")->check(CLI::PositiveNumber);
  app.add_option("--json", o.json, "file for losses and figures")->group("Output");
  app.add_flag("--scaling", o.scaling, "measure 1, 2, 4, ... up to --procs ranks instead")->group("Output");
}

Status usage(const std::string& message) {
  return perf::usage_error(message + "; see --help");
}

Status check(Options& o, const std::string& die) {
  char end = 0;
  const char* const starts_ranks = o.procs > 0 ? "--procs"
                                   : o.threads ? "--threads"
                                   : o.scaling ? "--scaling"
                                               : "--die";
  if (o.procs < 0) o.procs = perf::has_launcher() && !o.threads && !o.scaling && die.empty() ? 0 : 2;
  if (Status s = perf::check_procs(o.procs, starts_ranks); !s) return s;
  if (!die.empty() && (sscanf(die.c_str(), "%d@%d%c", &o.die_rank, &o.die_step, &end) != 2 || o.die_rank < 0))
    return usage("--die is '" + die + "'; it has to be RANK@STEP, e.g. 1@20");
  if (!die.empty() && (o.threads || o.procs == 0)) return usage("--die needs local processes: --procs N");
  if (o.scaling && !(die.empty() && o.json.empty() && o.checkpoint.empty()))
    return usage("--scaling prints a table and no more: leave out --die, --json, --checkpoint and --resume");
  if (!die.empty() && (o.die_rank >= o.procs || o.die_step < 0 || o.die_step >= o.steps))
    return usage(text("--die %s: there are ranks 0 to %d and steps 0 to %d", die.c_str(), o.procs - 1, o.steps - 1));
  if (o.procs > 0 && !o.scaling && o.batch % o.procs != 0)
    return usage(text("--batch %d cannot be divided among %d ranks", o.batch, o.procs));
  if ((o.resume || o.checkpoint_every > 0) && o.checkpoint.empty())
    return usage("--resume and --checkpoint-every need --checkpoint FILE");
  if (o.scaling && o.procs == 0) return usage("--scaling needs local ranks: --procs N");
  if (o.scaling && o.steps <= kWarmUpSteps)
    return usage(text("--scaling needs more than %d steps: that many are not timed", kWarmUpSteps));
  return {};
}

}  // namespace

Status parse_options(int argc, char** argv, Options* options) {
  CLI::App app(kAbout, program_invocation_short_name);
  app.footer(with_name(kExamples));
  app.get_formatter()->column_width(26);
  app.option_defaults()->always_capture_default();
  app.option_defaults()->take_last();
  std::string gradients = "float", die;
  add_run_options(app, *options, die);
  add_model_options(app, *options);
  add_training_options(app, *options);
  add_gradient_options(app, *options, gradients);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    options->help = app.help();
    return {};
  } catch (const CLI::ParseError& e) {
    return perf::usage_error(cli::complaint(app, e));
  }
  options->bfloat16 = gradients == "bfloat16";
  return check(*options, die);
}

}  // namespace tutti::train
