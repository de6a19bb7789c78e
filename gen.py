import os,re,textwrap
D='/tmp/work/admission/internal/admission/testdata/'
def req(name='gpu', cls='share.gpu.aliquot.dev', mem=None, cores=None, caps=None, sel=None, extra='', raw=''):
    o=f"- name: {name}\n  exactly:\n    deviceClassName: {cls}\n"
    o+=body(mem,cores,caps,sel,4)
    if extra: o+=textwrap.indent(extra,'    ')
    return o
def body(mem,cores,caps,sel,n):
    o=''
    if sel:
        o+='selectors:\n'
        for s in sel: o+="- cel:\n    expression: |-\n"+textwrap.indent(s,'      ')+"\n"
    c=dict(caps or {})
    if mem is not None: c={'memory':mem,**c}
    if cores is not None: c={**c,'cores':cores}
    if c:
        o+='capacity:\n  requests:\n'
        for k,v in c.items(): o+=f"    {k}: {v}\n"
    return textwrap.indent(o,' '*n)
def sub(name,cls='share.gpu.aliquot.dev',mem=None,cores=None,caps=None,sel=None):
    return f"- name: {name}\n  deviceClassName: {cls}\n"+body(mem,cores,caps,sel,2)
def first(name,*subs):
    return f"- name: {name}\n  firstAvailable:\n"+textwrap.indent(''.join(subs),'  ')
def config(params,requests=None,driver='gpu.aliquot.dev'):
    o='- '
    if requests: o+=f"requests: [{', '.join(requests)}]\n  "
    o+=f"opaque:\n    driver: {driver}\n    parameters:\n"+textwrap.indent(params,'      ')
    return o
SC="apiVersion: gpu.aliquot.dev/v1alpha1\nkind: ShareConfig\n"
SK="apiVersion: gpu.aliquot.dev/v1alpha1\nkind: ShareClass\n"
def claim(name,reqs,constraints='',configs='',template=False,meta=''):
    s="devices:\n  requests:\n"+textwrap.indent(''.join(reqs),'  ')
    if constraints: s+="  constraints:\n"+textwrap.indent(constraints,'  ')
    if configs: s+="  config:\n"+textwrap.indent(configs,'  ')
    kind='ResourceClaimTemplate' if template else 'ResourceClaim'
    o=f"apiVersion: resource.k8s.io/v1\nkind: {kind}\nmetadata:\n  name: {name}\n{meta}spec:\n"
    if template: o+="  spec:\n"+textwrap.indent(s,'    ')
    else: o+=textwrap.indent(s,'  ')
    return o
def klass(name,sel=None,params=None,ext=None,driver='gpu.aliquot.dev',raw=''):
    o=f"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata:\n  name: {name}.gpu.aliquot.dev\nspec:\n"
    if ext: o+=f"  extendedResourceName: {ext}\n"
    if sel:
        o+='  selectors:\n'
        for s in sel: o+="  - cel:\n      expression: |-\n"+textwrap.indent(s,'        ')+"\n"
    if params: o+=f"  config:\n  - opaque:\n      driver: {driver}\n      parameters:\n"+textwrap.indent(params,'        ')
    return o
cases={'good':{},'bad':{}}
comments={}
def good(n,text,why=''): cases['good'][n]=(text,why)
def bad(n,text,why=''): cases['bad'][n]=(text,why)
A="device.attributes['gpu.aliquot.dev']"
C="device.capacity['gpu.aliquot.dev']"
# --- amounts
good('share',claim('share',[req(mem='10Gi',cores=30)]))
good('share-template',claim('share-template',[req(mem='10Gi',cores=30)],template=True))
good('whole',claim('whole',[req(cls='gpu.aliquot.dev')]))
good('memory-step',claim('memory-step',[req(mem='1500000000')]),'The scheduler rounds up to whole Mi.')
good('memory-decimal',claim('memory-decimal',[req(mem='0.1Gi',cores='1e1')]),'107374182.4 bytes, which the scheduler rounds up, and a number of cores as few people write it.')
good('memory-least',claim('memory-least',[req(mem='1Mi',cores=0)]))
good('cores-all',claim('cores-all',[req(cores=100)]))
bad('memory-zero',claim('memory-zero',[req(mem=0)]))
bad('memory-negative',claim('memory-negative',[req(mem='-4Gi')]))
bad('memory-small',claim('memory-small',[req(mem='4')]),'Somebody meant 4Gi.')
bad('memory-milli',claim('memory-milli',[req(mem='100m')]),'Somebody meant 100M.')
bad('memory-huge',claim('memory-huge',[req(mem='16Ei')]))
bad('memory-fraction',claim('memory-fraction',[req(mem='0.33333Gi')]))
bad('cores-negative',claim('cores-negative',[req(mem='1Gi',cores=-1)]))
bad('cores-fraction',claim('cores-fraction',[req(mem='1Gi',cores='0.5')]))
bad('cores-many',claim('cores-many',[req(mem='1Gi',cores=150)]))
bad('both-wrong-template',claim('both-wrong-template',[req(mem=0,cores=101)],template=True),'Every error is told at once.')
# --- names
bad('name-qualified',claim('name-qualified',[req(caps={'gpu.aliquot.dev/memory':'4Gi'})]),'The scheduler compares names as they are written.')
bad('name-typo',claim('name-typo',[req(caps={'memroy':'4Gi'},cores=10)]))
bad('name-core',claim('name-core',[req(mem='4Gi',caps={'core':10})]))
bad('name-case',claim('name-case',[req(caps={'Memory':'4Gi'})]))
bad('name-synonym',claim('name-synonym',[req(caps={'gpu-mem':'4Gi'})]))
bad('name-other-driver',claim('name-other-driver',[req(caps={'gpu.example.com/vram':'4Gi'})]))
bad('name-unknown',claim('name-unknown',[req(caps={'bandwidth':'4Gi'})]))
bad('name-and-value',claim('name-and-value',[req(mem=0,caps={'coers':10})]))
# --- bounds
good('bounds-met',claim('bounds-met',[req(cls='bounded.gpu.aliquot.dev',mem='20Gi',cores=50)]))
bad('bounds-memory-more',claim('bounds-memory-more',[req(cls='bounded.gpu.aliquot.dev',mem='21Gi',cores=10)]))
bad('bounds-memory-rounded',claim('bounds-memory-rounded',[req(cls='bounded.gpu.aliquot.dev',mem='21474836481',cores=10)]),'One byte beyond 20Gi, which the scheduler rounds up to the next Mi.')
bad('bounds-memory-less',claim('bounds-memory-less',[req(cls='bounded.gpu.aliquot.dev',mem='1000Mi',cores=10)]))
bad('bounds-cores-none',claim('bounds-cores-none',[req(cls='bounded.gpu.aliquot.dev',mem='2Gi')]))
bad('bounds-cores-more',claim('bounds-cores-more',[req(cls='bounded.gpu.aliquot.dev',mem='2Gi',cores=51)]))
bad('bounds-whole',claim('bounds-whole',[req(cls='bounded.gpu.aliquot.dev')]))
bad('bounds-no-memory',claim('bounds-no-memory',[req(cls='bounded.gpu.aliquot.dev',cores=10)],template=True))
bad('bounds-just-the-memory',claim('bounds-just-the-memory',[req(cls='cores.gpu.aliquot.dev',mem='14911Mi')]),'All the memory of a T4 and no cores is the T4.')
good('bounds-all-memory-some-cores',claim('bounds-all-memory-some-cores',[req(cls='cores.gpu.aliquot.dev',mem='14911Mi',cores=10)]))
# --- defaults
good('default-both',claim('default-both',[req(cls='defaults.gpu.aliquot.dev')]))
good('default-memory',claim('default-memory',[req(cls='defaults.gpu.aliquot.dev',cores=20)]))
good('default-template',claim('default-template',[req(cls='defaults.gpu.aliquot.dev',mem='2Gi')],template=True))
good('default-alternatives',claim('default-alternatives',[first('gpu',sub('large','defaults.gpu.aliquot.dev',mem='20Gi'),sub('small','defaults.gpu.aliquot.dev'))]))
bad('default-not-over',claim('default-not-over',[req(cls='defaults.gpu.aliquot.dev',mem='30Gi',cores=60)]),'A default does not stand in for what is too much.')
bad('default-zero-stays',claim('default-zero-stays',[req(cls='defaults.gpu.aliquot.dev',mem=0)]))
# --- alternatives, several requests
good('alternatives',claim('alternatives',[first('gpu',sub('partition','mig.gpu.aliquot.dev',sel=[f"{A}.?profile.orValue('') == '1g.10gb'"]),sub('share',mem='10Gi',cores=15))]))
good('alternatives-one-fits',claim('alternatives-one-fits',[first('gpu',sub('huge',mem='200Gi'),sub('share',mem='10Gi'))]))
bad('alternatives-second',claim('alternatives-second',[first('gpu',sub('large',mem='20Gi'),sub('small',mem='-1'))]))
bad('alternatives-both',claim('alternatives-both',[first('gpu',sub('large','bounded.gpu.aliquot.dev',mem='40Gi',cores=10),sub('small',cores=300))],template=True))
bad('requests-second',claim('requests-second',[req('a',mem='1Gi'),req('b',mem='1Gi',cores=-5)]))
good('requests-of-two-drivers',claim('requests-of-two-drivers',[req('gpu',mem='1Gi'),req('nic','nic.example.com',caps={'nic.example.com/bandwidth':'-10'})]),"Another driver's business.")
good('admin',claim('admin',[req(cls='share.gpu.aliquot.dev',mem=0,extra='adminAccess: true\n')]),'Administrators look at devices and take nothing.\n# namespace: resource.kubernetes.io/admin-access=true')
# --- MIG
good('mig',claim('mig',[req(cls='mig.gpu.aliquot.dev',caps={'multiprocessors':14},sel=[f"{C}.memory.isGreaterThan(quantity('9Gi'))"])]))
good('mig-class',claim('mig-class',[req(cls='mig-1g.10gb.gpu.aliquot.dev',mem='2Gi')]))
bad('mig-fraction',claim('mig-fraction',[req(cls='mig.gpu.aliquot.dev',caps={'copyEngines':'0.5'})]))
bad('mig-case',claim('mig-case',[req(cls='mig.gpu.aliquot.dev',caps={'copyengines':1})]))
good('mig-capacity-of-gpu',claim('mig-capacity-of-gpu',[req(cls='gpu.aliquot.dev',caps={'decoders':1})]))
# --- CEL of claims
good('cel',claim('cel',[req(mem='1Gi',sel=[f"has({A}.productName) && {A}.productName.matches('H100|H200')",f"{C}.memory.compareTo(quantity('75Gi')) >= 0"])]))
good('cel-bind',claim('cel-bind',[req(mem='1Gi',sel=[f"cel.bind(gpu, {A}, gpu.?architecture.orValue('') == 'Hopper' && gpu.index < 4)"])]))
good('cel-standard-attribute',claim('cel-standard-attribute',[req(mem='1Gi',sel=["device.attributes['resource.kubernetes.io'].?pcieRoot.orValue('') != 'pci0000:00'"])]))
bad('cel-attribute',claim('cel-attribute',[req(sel=[f"{A}.productname.startsWith('NVIDIA')"])]))
bad('cel-attribute-optional',claim('cel-attribute-optional',[req(sel=[f"{A}.?profil.orValue('') == '1g.10gb'"])]),'It would match nothing, and nobody would say so.')
bad('cel-attribute-index',claim('cel-attribute-index',[req(sel=[f"{A}['architectur'] == 'Hopper'"])]))
bad('cel-attribute-has',claim('cel-attribute-has',[req(sel=[f'has(device.attributes["gpu.aliquot.dev"].model) && device.attributes["gpu.aliquot.dev"].model == "T4"'])]))
bad('cel-attribute-in',claim('cel-attribute-in',[req(sel=[f"'uid' in {A}"])]))
bad('cel-bind-attribute',claim('cel-bind-attribute',[req(sel=[f"cel.bind(gpu, {A}, gpu.architecture == 'Hopper' && gpu.brnad == 'Nvidia')"])],template=True))
bad('cel-capacity',claim('cel-capacity',[req(sel=[f"{C}.memroy.isGreaterThan(quantity('40Gi'))"])]))
bad('cel-capacity-as-attribute',claim('cel-capacity-as-attribute',[req(sel=[f"{A}.memory.isGreaterThan(quantity('40Gi'))"])]))
bad('cel-attribute-as-capacity',claim('cel-attribute-as-capacity',[req(sel=[f"{C}.index.isGreaterThan(quantity('3'))"])]))
bad('cel-alternatives',claim('cel-alternatives',[first('gpu',sub('a',mem='1Gi',sel=[f"{A}.type == 'gpu'",f"{A}.migProfile == '1g.10gb'"]),sub('b',mem='1Gi'))]))
bad('cel-malformed',claim('cel-malformed',[req(sel=[f"{A}.type == "])]))
bad('cel-type',claim('cel-type',[req(sel=[f"{C}.memory > 40"])]))
# --- constraints
good('constraints',claim('constraints',[req('a',mem='1Gi'),req('b',mem='1Gi')],constraints='- requests: [a, b]\n  matchAttribute: gpu.aliquot.dev/uuid\n'))
good('constraints-distinct',claim('constraints-distinct',[req('a',mem='1Gi'),req('b',mem='1Gi')],constraints='- distinctAttribute: gpu.aliquot.dev/uuid\n- matchAttribute: resource.kubernetes.io/pcieRoot\n'))
bad('constraints-match',claim('constraints-match',[req('a',mem='1Gi'),req('b',mem='1Gi')],constraints='- requests: [a, b]\n  matchAttribute: gpu.aliquot.dev/parentUuid\n'))
bad('constraints-distinct-unknown',claim('constraints-distinct-unknown',[req('a',mem='1Gi'),req('b',mem='1Gi')],constraints='- requests: [a, b]\n  matchAttribute: gpu.aliquot.dev/type\n- distinctAttribute: gpu.aliquot.dev/gpu\n'))
# --- parameters of claims
good('config',claim('config',[req(mem='1Gi',cores=10)],configs=config(SC+'corePolicy: Burst\n')))
good('config-enforcement',claim('config-enforcement',[req(cls='open.gpu.aliquot.dev',mem='1Gi')],configs=config(SC+'enforcement: None\n',['gpu'])))
good('config-alternative',claim('config-alternative',[first('gpu',sub('a','open.gpu.aliquot.dev',mem='2Gi'),sub('b','fixed.gpu.aliquot.dev',mem='1Gi'))],configs=config(SC+'corePolicy: Burst\n',['gpu/a'])))
good('config-of-others',claim('config-of-others',[req(mem='1Gi')],configs=config('anything: goes\n',driver='nic.example.com')))
bad('config-kind',claim('config-kind',[req(mem='1Gi')],configs=config(SK+'corePolicy: Burst\n')))
bad('config-version',claim('config-version',[req(mem='1Gi')],configs=config(SC.replace('v1alpha1','v1')+'corePolicy: Burst\n')))
bad('config-field',claim('config-field',[req(mem='1Gi')],configs=config(SC+'corepolicy: Burst\n')))
bad('config-value',claim('config-value',[req(mem='1Gi')],configs=config(SC+'corePolicy: burst\n')))
bad('config-amounts',claim('config-amounts',[req(mem='1Gi')],configs=config(SC+'memory: 4Gi\n'),template=True))
bad('config-of-nvidia',claim('config-of-nvidia',[req(mem='1Gi')],configs=config('apiVersion: resource.nvidia.com/v1beta1\nkind: GpuConfig\nsharing:\n  strategy: MPS\n')),"Parameters of NVIDIA's driver, under the name of this one.")
bad('config-may-not-set',claim('config-may-not-set',[req(mem='1Gi')],configs=config(SC+'enforcement: None\n')))
bad('config-may-set-nothing',claim('config-may-set-nothing',[req('a',mem='1Gi'),req('b','fixed.gpu.aliquot.dev',mem='1Gi')],configs=config(SC+'corePolicy: Burst\n')))
bad('config-alternatives-all',claim('config-alternatives-all',[first('gpu',sub('a','open.gpu.aliquot.dev',mem='2Gi'),sub('b','fixed.gpu.aliquot.dev',mem='1Gi'))],configs=config(SC+'corePolicy: Burst\n',['gpu'])))
bad('config-no-such-request',claim('config-no-such-request',[req(mem='1Gi')],configs=config(SC+'corePolicy: Burst\n',['gpus'])))
good('config-for-nobody',claim('config-for-nobody',[req('gpu',mem='1Gi'),req('nic','nic.example.com')],configs=config(SC+'corePolicy: Burst\n',['nic'])))
# --- warnings of claims
good('warn-too-large',claim('warn-too-large',[req(mem='200Gi')]))
good('warn-too-large-of-kind',claim('warn-too-large-of-kind',[req(cls='turing.gpu.aliquot.dev',mem='20Gi')],template=True))
good('warn-too-large-for-selectors',claim('warn-too-large-for-selectors',[req(mem='20Gi',sel=[f"{A}.productName == 'Tesla T4'"])]))
good('warn-no-class',claim('warn-no-class',[req(cls='shares.gpu.aliquot.dev',mem='2Gi')]))
bad('no-class-and-zero',claim('no-class-and-zero',[req(cls='shares.gpu.aliquot.dev',mem=0)]),'What is wrong whatever the class is refused before there is one.')
good('warn-no-match',claim('warn-no-match',[req(mem='2Gi',sel=[f"{A}.architecture == 'Blackwell'"])]))
good('warn-class-without-gpus',claim('warn-class-without-gpus',[req(cls='mig-2g.45gb.gpu.aliquot.dev')]))
good('warn-not-even-whole',claim('warn-not-even-whole',[req(cls='large.gpu.aliquot.dev')]))
0 and good('warn-not-together',claim('warn-not-together',[req(cls='mig.gpu.aliquot.dev',mem='30Gi',caps={'multiprocessors':132})]))
good('warn-fails',claim('warn-fails',[req(cls='open.gpu.aliquot.dev',mem='2Gi',sel=[f"{A}.profile == '1g.10gb'"])]),'Not all GPUs have this attribute, and the scheduler gives the pod up at the first that has not.')
good('warn-alternatives-none',claim('warn-alternatives-none',[first('gpu',sub('a',mem='300Gi'),sub('b','mig-2g.45gb.gpu.aliquot.dev'))]))
good('warn-class-of-many',claim('warn-class-of-many',[req(cls='anything.gpu.aliquot.dev',caps={'vram':'-4Gi'})]),'This class gives out devices of another driver too, and nobody knows what those publish.')
good('warn-small',claim('warn-small',[req(cls='middle.gpu.aliquot.dev')]),'The scheduler knows no bounds, and may choose a T4.')
# --- classes
P="device.driver == 'gpu.aliquot.dev'"
good('class',klass('class-plain',[P+" && device.allowMultipleAllocations"],SK+"memory: {min: 1Gi, max: 1.5Gi, default: 1280Mi}\ncores: {max: 50, default: 10}\ncorePolicy: Burst\nclaimsMaySet: [corePolicy]\n"))
good('class-of-others',"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata:\n  name: nic.example.com\nspec:\n  selectors:\n  - cel:\n      expression: device.driver == 'nic.example.com' && device.attributes['nic.example.com'].speed > 10\n  config:\n  - opaque:\n      driver: nic.example.com\n      parameters: {anything: goes}\n")
bad('class-kind',klass('class-kind',[P],SC+'corePolicy: Burst\n'))
bad('class-version',klass('class-version',[P],SK.replace('v1alpha1','v1alpha2')))
bad('class-field',klass('class-field',[P],SK+'maxShares: 4\n'))
bad('class-priority',klass('class-priority',[P],SK+'enforcement: MPS\n'))
bad('class-bounds-crossed',klass('class-bounds-crossed',[P],SK+'memory: {min: 8Gi, max: 4Gi}\ncores: {min: 50, max: 10}\n'))
bad('class-default',klass('class-default',[P],SK+'memory: {max: 4Gi, default: 8Gi}\ncores: {min: 5, default: 0}\n'))
bad('class-default-step',klass('class-default-step',[P],SK+'memory: {default: 4G}\n'))
bad('class-memory-number',klass('class-memory-number',[P],SK+'memory: {max: 20}\n'),'Somebody meant 20Gi.')
bad('class-cores-text',klass('class-cores-text',[P],SK+'cores: {max: "50%"}\n'))
bad('class-claims-may-set',klass('class-claims-may-set',[P],SK+'claimsMaySet: [memory]\n'))
bad('class-attribute',klass('class-attribute',[P,f"{A}.?product.orValue('') == 'T4'"]))
bad('class-capacity',klass('class-capacity',[P,f"{C}.mem.isGreaterThan(quantity('4Gi'))"]))
bad('class-malformed',klass('class-malformed',[P+" &&"]))
good('class-warn-no-match',klass('class-warn-no-match',[P,f"{A}.?architecture.orValue('') == 'Blackwell'"]))
good('class-warn-fails',klass('class-warn-fails',[P,f"{A}.profile == '1g.10gb'"]))
good('class-warn-foreign',klass('class-warn-foreign',[f"{A}.type == 'gpu'"]),'A device of another driver has no such attribute.')
good('class-warn-everything',klass('class-warn-everything',["device.allowMultipleAllocations || device.driver != ''"],SK+'cores: {max: 50}\n'))
good('class-warn-extended-resource',klass('class-warn-extended-resource',[P,"device.allowMultipleAllocations"],ext='nvidia.com/gpu'))
good('class-warn-extended-default',klass('class-warn-extended-default',[P],SK+'memory: {max: 8Gi, default: 4Gi}\n',ext='example.com/slice'))
good('class-warn-extended-max',klass('class-warn-extended-max',[P],SK+'memory: {max: 8Gi}\n',ext='example.com/part'))
good('class-warn-large',klass('class-warn-large',[P],SK+'memory: {min: 200Gi}\n'))
for d,all in cases.items():
    for n,(text,why) in all.items():
        p=D+d+'/'+n+'.yaml'
        keep=''
        if os.path.exists(p):
            keep=''.join(l for l in open(p) if l.startswith(('# error: ','# warning: ','# refused-by: ')))
        open(p,'w').write(keep+(('# '+why+'\n') if why else '')+text)
print(sum(map(len,cases.values())))
