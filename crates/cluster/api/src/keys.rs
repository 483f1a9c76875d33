//! Every label, annotation and attribute that Berth reads or writes.
//!
//! The code that reads or writes a key uses the constant here, and `docs/reference/annotations.md` is
//! generated from [`KEYS`]. A test searches the sources for keys under `berth.dev/` that are missing.

use berth_model::workload::{CAPACITY_LABELS, POOL_LABELS};
pub use berth_tenancy::share::TEAM_LABEL as TEAM;

/// The class of work a pod does, as a [`berth_model::workload::WorkloadClass`].
pub const CLASS: &str = "berth.dev/class";
/// The model a pod loads. An annotation, because model names are often not valid label values, or a label.
pub const MODEL: &str = "berth.dev/model";
pub const GPU_MEMORY: &str = "berth.dev/gpu-memory";
pub const GPU_COMPUTE: &str = "berth.dev/gpu-compute";
pub const MOVABLE: &str = "berth.dev/movable";
pub const GANG: &str = "berth.dev/gang";
pub const GANG_SIZE: &str = "berth.dev/gang-size";
pub const GANG_TOPOLOGY: &str = "berth.dev/gang-topology";
pub const GANG_TIMEOUT: &str = "berth.dev/gang-timeout";
/// Exempts an object from rules of the contract: `CODE[,CODE…]: reason`, several separated by semicolons or line breaks.
pub const LINT_IGNORE: &str = "berth.dev/lint-ignore";
pub const COST_CENTER: &str = "berth.dev/cost-center";
/// Set with the binding itself, so every bound pod has it.
pub const PLACEMENT: &str = "berth.dev/placement";
pub const ALIGNMENT: &str = "berth.dev/alignment";

/// Prefix of node labels, followed by the name of a model that the node has cached.
pub const MODEL_PREFIX: &str = "model.berth.dev/";
/// Cached models whose names are not valid label keys.
pub const MODELS: &str = "berth.dev/models";
pub const PRICE_PER_HOUR: &str = "berth.dev/price-per-hour";
pub const GPU_DIVISION: &str = "berth.dev/gpu-division";
pub const NUMA_NODES: &str = "berth.dev/numa-nodes";
pub const SOCKETS: &str = "berth.dev/sockets";
pub const THREADS_PER_CORE: &str = "berth.dev/threads-per-core";
/// Prefix of node labels, followed by the name of a MIG profile.
pub const MIG_PROFILE_PREFIX: &str = "berth.dev/mig-";
pub const MIG_LAYOUT: &str = "berth.dev/mig-layout";
pub const MIG_CONFIG: &str = "berth.dev/mig.config";
pub const MIG_STATE_LABEL: &str = "berth.dev/mig.state";
pub const MIG_STATE: &str = "berth.dev/mig-state";

pub const ZONE_CORES: &str = "berth.dev/cores";
pub const ZONE_CACHES: &str = "berth.dev/l3";
pub const ZONE_SOCKET: &str = "berth.dev/socket";
pub const ZONE_MEMORY: &str = "berth.dev/memory";
pub const ZONE_HUGEPAGES: &str = "berth.dev/hugepages";

/// Bindings in flight: JSON, pod names by namespace and UID.
pub const BINDING: &str = "berth.dev/binding";
/// The condition of a pod that a new leader has fenced.
pub const FENCED_CONDITION: &str = "berth.dev/Fenced";
pub const FENCED_CLAIM: &str = "berth.dev/fenced";
pub const WEBHOOK: &str = "berth.dev/webhook";
/// The value of [`WEBHOOK`] that exempts a namespace.
pub const WEBHOOK_DISABLED: &str = "disabled";

pub const VIRTUAL: &str = "berth.dev/virtual";
pub const VIRTUAL_DEVICES: &str = "berth.dev/virtual-devices";
pub const START_AFTER: &str = "berth.dev/start-after";
pub const READY_AFTER: &str = "berth.dev/ready-after";
pub const RUN_FOR: &str = "berth.dev/run-for";
pub const EXIT_CODE: &str = "berth.dev/exit-code";
pub const STOP_AFTER: &str = "berth.dev/stop-after";

/// Where on an object a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KeyKind {
    Label,
    Annotation,
    /// A label, or an annotation of the same name.
    LabelOrAnnotation,
    /// An attribute of a NodeResourceTopology or of one of its zones.
    Attribute,
    /// A condition in an object's status.
    Condition,
}

impl KeyKind {
    /// As documents write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Label => "label",
            Self::Annotation => "annotation",
            Self::LabelOrAnnotation => "label or annotation",
            Self::Attribute => "attribute",
            Self::Condition => "condition",
        }
    }
}

/// Who writes a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Writer {
    /// Who creates the workload.
    User,
    /// Who runs the cluster, and its provisioner.
    Operator,
    /// `berth serve`.
    Scheduler,
    /// `berth agent`.
    Agent,
    /// The virtual kubelets of `berth up`.
    VirtualKubelet,
    /// Software of others, which the entry's meaning names.
    Other,
}

impl Writer {
    /// As documents write it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Operator => "operator",
            Self::Scheduler => "berth serve",
            Self::Agent => "berth agent",
            Self::VirtualKubelet => "berth up",
            Self::Other => "others",
        }
    }
}

/// A part of the reference page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Section {
    /// What users ask for.
    Workloads,
    /// What operators and the agent say about nodes.
    Nodes,
    /// What Berth writes for itself and for people to read.
    Status,
    /// Attributes of a NodeResourceTopology.
    Topology,
    /// What the virtual kubelets of `berth up` read and write.
    Simulated,
    /// Keys of other projects.
    Others,
}

impl Section {
    /// All sections, in the order of the page.
    pub const ALL: [Self; 6] =
        [Self::Workloads, Self::Nodes, Self::Status, Self::Topology, Self::Simulated, Self::Others];

    pub const fn title(self) -> &'static str {
        match self {
            Self::Workloads => "Workloads",
            Self::Nodes => "Nodes",
            Self::Status => "Written by Berth",
            Self::Topology => "Attributes of NodeResourceTopology",
            Self::Simulated => "Pods and nodes of `berth up`",
            Self::Others => "Keys of other projects that Berth reads",
        }
    }
}

/// A label, annotation, attribute or condition type.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// With a trailing upper-case word where the key is a prefix.
    pub name: &'static str,
    pub section: Section,
    pub kind: KeyKind,
    /// Kinds of objects it is read from or written to.
    pub objects: &'static [&'static str],
    /// The form of the value, with an example.
    pub value: &'static str,
    pub meaning: &'static str,
    /// More than one where, for example, an operator can override the agent.
    pub writers: &'static [Writer],
}

const fn key(
    section: Section,
    name: &'static str,
    kind: KeyKind,
    objects: &'static [&'static str],
    value: &'static str,
    meaning: &'static str,
) -> Key {
    let writers: &[Writer] = match section {
        Section::Workloads => &[Writer::User],
        Section::Nodes => &[Writer::Operator],
        Section::Status => &[Writer::Scheduler],
        Section::Topology => &[Writer::Agent],
        Section::Simulated => &[Writer::User],
        Section::Others => &[Writer::Other],
    };
    Key { name, section, kind, objects, value, meaning, writers }
}

impl Key {
    const fn by(mut self, writers: &'static [Writer]) -> Self {
        self.writers = writers;
        self
    }
}

const POD: &[&str] = &["Pod"];
const POD_OR_GROUP: &[&str] = &["Pod", "PodGroup"];
const NODE: &[&str] = &["Node"];
const TOPOLOGY: &[&str] = &["NodeResourceTopology"];
const NODE_OR_TOPOLOGY: &[&str] = &["Node", "NodeResourceTopology"];
const ZONE: &[&str] = &["NodeResourceTopology zone"];

/// Every key, in the order of the reference page.
pub static KEYS: &[Key] = {
    use KeyKind::{Annotation, Attribute, Condition, Label, LabelOrAnnotation};
    use Section::{Nodes, Others, Simulated, Status, Topology, Workloads};
    use Writer::{Agent, Operator, Other, User, VirtualKubelet};
    &[
        key(Workloads, CLASS, Label, POD,
            "`interactive`, `embedding`, `batch` or `experimentation`",
            "Class of the pod. Without it, the class follows from the PriorityClass and the priority."),
        key(Workloads, MODEL, LabelOrAnnotation, POD,
            "a name, such as `org/chat-70b`",
            "Model that the pod loads. Nodes that have it cached are preferred. The annotation takes precedence."),
        key(Workloads, TEAM, Label, POD,
            "the name of a Team",
            "Team that the pod counts for, if several Teams list its namespace or if the Team lists none."),
        key(Workloads, COST_CENTER, Label, &["any workload"],
            "any",
            "Who pays. The contract can require it; `costCenterLabels` in its settings names other labels."),
        key(Workloads, GPU_MEMORY, Annotation, POD,
            "a quantity, such as `16Gi`",
            "GPU memory the pod needs. It gets the smallest MIG slice, share or GPU that is large enough."),
        key(Workloads, GPU_COMPUTE, Annotation, POD,
            "a percentage from `1%` to `100%`",
            "Part of one GPU's compute that the pod needs."),
        key(Workloads, GANG, Label, POD,
            "a name",
            "Gang of the pod within its namespace: its pods start together or not at all."),
        key(Workloads, GANG_SIZE, Label, POD,
            "1 to 10000",
            "How many pods of the gang start together. Required with `berth.dev/gang`."),
        key(Workloads, GANG_TOPOLOGY, Annotation, POD_OR_GROUP,
            "a node label key, such as `topology.kubernetes.io/zone`, with `,preferred` if it is only a preference",
            "All pods of the gang go to nodes with the same value of this label."),
        key(Workloads, GANG_TIMEOUT, Annotation, POD_OR_GROUP,
            "a duration from `1s` to `168h`, such as `10m`",
            "How long nodes may be reserved for the gang, and how long its bound pods wait for the others."),
        key(Workloads, MOVABLE, Annotation, POD,
            "`false`",
            "Simulations and plans do not move the pod to defragment."),
        key(Workloads, LINT_IGNORE, Annotation, &["any object"],
            "`CODE[,CODE…]: reason`, several separated by semicolons or line breaks",
            "Exempts the object from rules of `berth lint` and the webhook."),
        key(Workloads, WEBHOOK, Label, &["Namespace"],
            "`disabled`",
            "Exempts all objects of the namespace from the webhook.").by(&[Operator]),

        key(Nodes, POOL_LABELS[0], Label, NODE,
            "the name of a Pool object",
            "Pool of the node. Takes precedence over the labels of Karpenter and cloud providers."),
        key(Nodes, "model.berth.dev/NAME", Label, NODE,
            "any but `false`",
            "The node has this model cached."),
        key(Nodes, MODELS, Annotation, NODE,
            "names separated by commas",
            "Further models that the node has cached, for names that are not valid label keys."),
        key(Nodes, PRICE_PER_HOUR, LabelOrAnnotation, NODE,
            "US dollars, such as `3.50`",
            "What the node costs per hour, for reports. Takes precedence over the price table."),
        key(Nodes, GPU_DIVISION, Label, NODE,
            "`shares`",
            "Requests by memory or compute get MPS shares of this node's GPUs, cut to size."),
        key(Nodes, NUMA_NODES, LabelOrAnnotation, NODE,
            "a number",
            "NUMA nodes of the machine, all alike. Not used if a NodeResourceTopology describes the node."
        ).by(&[Agent, Operator]),
        key(Nodes, SOCKETS, LabelOrAnnotation, NODE,
            "a number",
            "Sockets of the machine. Default: one per NUMA node.").by(&[Agent, Operator]),
        key(Nodes, THREADS_PER_CORE, LabelOrAnnotation, NODE,
            "a number",
            "Hardware threads per core.").by(&[Agent, Operator]),
        key(Nodes, "berth.dev/mig-PROFILE", Label, NODE,
            "a number",
            "Slices of this MIG profile that fit on one GPU, if all GPUs are alike.").by(&[Agent]),
        key(Nodes, MIG_LAYOUT, Annotation, NODE,
            "GPU indexes and profiles, such as `0=4g.71gb,3g.71gb; 1-7=all-balanced`",
            "MIG layout that the agent is to apply. Takes precedence over `berth.dev/mig.config`."),
        key(Nodes, MIG_CONFIG, Label, NODE,
            "the name of a configuration, such as `all-1g.18gb`",
            "MIG layout that the agent is to apply to all GPUs."),
        key(Nodes, "berth.dev/topology-manager-policy", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "`none`, `best-effort`, `restricted` or `single-numa-node`",
            "The kubelet's `topologyManagerPolicy`.").by(&[Operator]),
        key(Nodes, "berth.dev/topology-manager-scope", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "`container` or `pod`",
            "The kubelet's `topologyManagerScope`.").by(&[Operator]),
        key(Nodes, "berth.dev/topology-manager-policy-options", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "`name=value` pairs separated by commas",
            "The kubelet's `topologyManagerPolicyOptions`.").by(&[Agent, Operator]),
        key(Nodes, "berth.dev/cpu-manager-policy", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "`none` or `static`",
            "The kubelet's `cpuManagerPolicy`.").by(&[Agent, Operator]),
        key(Nodes, "berth.dev/cpu-manager-policy-options", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "`name=value` pairs separated by commas",
            "The kubelet's `cpuManagerPolicyOptions`.").by(&[Agent, Operator]),
        key(Nodes, "berth.dev/reserved-system-cpus", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "a CPU list, such as `0-1,64-65`",
            "CPUs that the kubelet keeps for the system.").by(&[Agent, Operator]),
        key(Nodes, "berth.dev/memory-manager-policy", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "`None` or `Static`",
            "The kubelet's `memoryManagerPolicy`.").by(&[Agent, Operator]),
        key(Nodes, "berth.dev/reserved-memory", LabelOrAnnotation, NODE_OR_TOPOLOGY,
            "such as `0:memory=1Gi;1:memory=1Gi`",
            "Memory that the kubelet keeps for the system on each NUMA node.").by(&[Agent, Operator]),

        key(Status, PLACEMENT, Annotation, POD,
            "JSON: `alignment`, `numaNodes`, `devices`, `grant`, `why`",
            "Where on its node the pod is expected to run, and which devices it is to get. Part of the binding."),
        key(Status, ALIGNMENT, Annotation, POD,
            "JSON: `verdict` (`aligned`, `misaligned`, `floating` or `unknown`), `cpuNumaNodes`, `gpuNumaNodes`, \
             `distance`, `remedy`",
            "How the running pod's CPUs and GPUs are placed, measured on the node.").by(&[Agent]),
        key(Status, MIG_STATE_LABEL, Label, NODE,
            "`idle`, `pending`, `success`, `rolled-back` or `failed`",
            "Whether the wanted MIG layout has been applied.").by(&[Agent]),
        key(Status, MIG_STATE, Annotation, NODE,
            "JSON",
            "The same with the reason and the present layout.").by(&[Agent]),
        key(Status, FENCED_CONDITION, Condition, POD,
            "`True`",
            "A new leader has changed the pod's resource version, so that in-flight bindings of the previous leader fail."),
        key(Status, FENCED_CLAIM, Label, &["ResourceClaim"],
            "a number",
            "The same for a ResourceClaim."),
        key(Status, BINDING, Annotation, &["Lease"],
            "JSON: pod names by namespace and UID",
            "Bindings that the leader may have in flight."),

        key(Topology, ZONE_CORES, Attribute, ZONE,
            "CPU lists of the threads, such as `0-3/8-11`",
            "Cores of the NUMA node: here four, of which the first has the CPUs 0 and 8."),
        key(Topology, ZONE_CACHES, Attribute, ZONE,
            "such as `0=0-1,8-9;1=2-3,10-11`",
            "L3 caches by id, with the CPUs that share them."),
        key(Topology, ZONE_SOCKET, Attribute, ZONE,
            "a number",
            "Socket of the NUMA node."),
        key(Topology, ZONE_MEMORY, Attribute, ZONE,
            "bytes",
            "Memory of the NUMA node, where the kubelet's memory manager does not assign it."),
        key(Topology, ZONE_HUGEPAGES, Attribute, ZONE,
            "such as `2097152=1024`",
            "Huge pages of the NUMA node: page size in bytes and their number."),
        key(Topology, "topologyManagerPolicy", Attribute, TOPOLOGY,
            "as in the kubelet's configuration",
            "The kubelet's topology policy. Exporters of the Topology Aware Scheduling API write it.")
            .by(&[Agent, Other]),
        key(Topology, "topologyManagerScope", Attribute, TOPOLOGY,
            "`container` or `pod`",
            "The kubelet's topology scope.").by(&[Agent, Other]),

        key(Simulated, RUN_FOR, Annotation, POD,
            "a duration, such as `90s` or `1h30m`",
            "How long the containers run. Without it, containers of Jobs run for 10 s and others until they are stopped."),
        key(Simulated, EXIT_CODE, Annotation, POD,
            "a number",
            "Exit code of the containers. Default: 0."),
        key(Simulated, START_AFTER, Annotation, POD,
            "a duration",
            "How long pulling images and creating containers takes."),
        key(Simulated, READY_AFTER, Annotation, POD,
            "a duration",
            "How long running containers take to become ready, such as the time a model loads."),
        key(Simulated, STOP_AFTER, Annotation, POD,
            "a duration",
            "How long containers take to stop after they are told to."),
        key(Simulated, VIRTUAL, LabelOrAnnotation, NODE,
            "`true`",
            "A virtual kubelet runs the pods of this node.").by(&[User, VirtualKubelet]),
        key(Simulated, VIRTUAL_DEVICES, Annotation, POD,
            "JSON",
            "CPUs, memory and devices that the virtual kubelet assigned to each container.").by(&[VirtualKubelet]),

        key(Others, POOL_LABELS[1], Label, NODE, "a name", "Karpenter: pool of the node."),
        key(Others, POOL_LABELS[2], Label, NODE, "a name", "EKS: pool of the node."),
        key(Others, POOL_LABELS[3], Label, NODE, "a name", "GKE: pool of the node."),
        key(Others, POOL_LABELS[4], Label, NODE, "a name", "AKS: pool of the node."),
        key(Others, CAPACITY_LABELS[0].0, Label, NODE, "`spot` or `on-demand`", "Karpenter: capacity type."),
        key(Others, CAPACITY_LABELS[1].0, Label, NODE, "`SPOT` or `ON_DEMAND`", "EKS: capacity type."),
        key(Others, CAPACITY_LABELS[2].0, Label, NODE, "`true` or `false`", "GKE: spot node."),
        key(Others, CAPACITY_LABELS[3].0, Label, NODE, "`true` or `false`", "GKE: preemptible node."),
        key(Others, CAPACITY_LABELS[4].0, Label, NODE, "`spot` or `regular`", "AKS: capacity type."),
        key(Others, CAPACITY_LABELS[5].0, Label, NODE, "`spot` or `normal`", "Spot node."),
        key(Others, "node.kubernetes.io/instance-type", Label, NODE, "a name",
            "Cloud provider: instance type, for prices."),
        key(Others, "nvidia.com/gpu.product", Label, NODE, "such as `NVIDIA-H100-80GB-HBM3`",
            "GPU feature discovery: model of the GPUs. The agent writes it where GPU feature discovery does not run.")
            .by(&[Other, Agent]),
        key(Others, "nvidia.com/gpu.count", Label, NODE, "a number", "GPU feature discovery: GPUs of the node.")
            .by(&[Other, Agent]),
        key(Others, "nvidia.com/gpu.memory", Label, NODE, "MiB", "GPU feature discovery: memory of a GPU.")
            .by(&[Other, Agent]),
        key(Others, "nvidia.com/gpu.replicas", Label, NODE, "a number",
            "GPU feature discovery: replicas or shares of a GPU. Likewise for slices: `nvidia.com/mig-PROFILE.replicas`.")
            .by(&[Other, Agent]),
        key(Others, "nvidia.com/gpu.sharing-strategy", Label, NODE, "`mps`, `time-slicing` or `none`",
            "GPU feature discovery: how GPUs are shared."),
        key(Others, "nvidia.com/mig.capable", Label, NODE, "`true` or `false`",
            "GPU feature discovery: whether the GPUs support MIG.").by(&[Other, Agent]),
        key(Others, "nvidia.com/mig.config", Label, NODE, "the name of a configuration",
            "NVIDIA's mig-manager: wanted MIG layout. The agent sets it where mig-manager runs.").by(&[Other, Agent]),
        key(Others, "nvidia.com/mig.config.state", Label, NODE, "`pending`, `success` or `failed`",
            "NVIDIA's mig-manager: state of the wanted layout.").by(&[Other, Agent]),
        key(Others, "nvidia.com/gpu.deploy.mig-manager", Label, NODE, "`true`, `false` or `paused-…`",
            "GPU operator: whether mig-manager runs on the node. If it does, the agent leaves MIG to it."),
        key(Others, "feature.node.kubernetes.io/cpu-hardware_multithreading", Label, NODE, "`true` or `false`",
            "Node feature discovery: whether cores have two threads, where nothing else says so."),
        key(Others, "karpenter.sh/do-not-disrupt", Annotation, POD, "`true`",
            "Karpenter: like `berth.dev/movable: \"false\"`.").by(&[User]),
        key(Others, "cluster-autoscaler.kubernetes.io/safe-to-evict", Annotation, POD, "`false`",
            "Cluster Autoscaler: like `berth.dev/movable: \"false\"`.").by(&[User]),
    ]
};
